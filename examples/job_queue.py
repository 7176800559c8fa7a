"""A work queue with two workers: a job that fails is retried, a job that fails too often becomes a dead letter."""

import tempfile
import threading
from pathlib import Path

import mqstore


def resize(picture: str, attempt: int) -> str:
    if picture == "broken.png" or (picture == "large.png" and attempt < 3):
        raise ValueError(picture)
    return f"{picture} at attempt {attempt}"


def work(jobs: mqstore.WorkQueue, done: list[str]) -> None:
    while True:
        try:
            with jobs.get() as job:
                done.append(resize(job.text(), job.attempt))
        except mqstore.ShutDown:
            return
        except ValueError:
            continue  # the end of the block has returned the job


def main(path: Path) -> None:
    done: list[str] = []
    with mqstore.open(path, "create") as store:
        jobs = store.work_queue("pictures", max_attempts=3, backoff=lambda attempt: 0.01 * attempt)
        workers = [threading.Thread(target=work, args=(jobs, done)) for _ in range(2)]
        for worker in workers:
            worker.start()
        jobs.put_many([b"cat.png", b"broken.png", b"dog.png", b"large.png"])
        jobs.join()
        jobs.shutdown()
        for worker in workers:
            worker.join()
        for picture in sorted(done):
            print("done:", picture)
        for letter in store.read(jobs.dead_letters):
            print("dead letter:", letter.text(), "because of", letter.properties["mqstore.reason"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder, "store"))
