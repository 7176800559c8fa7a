"""A job queue with two workers: each picture is in the queue once, however often the program is started."""

import threading

import mqstore


def work(jobs: mqstore.WorkQueue) -> None:
    while True:
        try:
            with jobs.get() as job:
                print("begun", job.text())
            print("done", job.text())
        except mqstore.ShutDown:
            return


with mqstore.open("data", mode="create") as store:
    jobs = store.work_queue("pictures", visibility_timeout=5)
    for number in range(20):
        jobs.put(f"picture {number}".encode(), dedup_id=f"picture-{number}")
        print("put", number)
    workers = [threading.Thread(target=work, args=(jobs,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    jobs.join()
    jobs.shutdown()
    for worker in workers:
        worker.join()
