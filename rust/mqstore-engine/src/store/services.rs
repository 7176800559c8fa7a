//! The threads of a store; only this file starts them.
//!
//! A service calls a `step` of a plain struct again and again; tests call the same steps by hand. Services hold the
//! writer weakly, so they end if the store is dropped without a close.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mqstore_io::sync::{JoinHandle, Mutex, spawn};

use super::background_task::BackgroundTask;
use super::writer::Writer;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::Durability;
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::ReplacedFiles;
use mqstore_log::dispatch::RUN_BYTES;
use mqstore_meta::SYNC_INTERVAL_MS;

/// Maximum sleep of a service before it checks whether it must end.
const LOOK: Duration = Duration::from_millis(200);

/// How long dispatch collects records under load when no reader waits for them.
const GATHER: Duration = Duration::from_millis(1);

/// The name of the dispatch thread.
const DISPATCH: &str = "mq-dispatch";

/// The running threads of one store.
#[derive(Debug)]
pub(crate) struct ServiceThreads {
    stop: Arc<AtomicBool>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl ServiceThreads {
    /// Pause after a task failed.
    const AGAIN: Duration = Duration::from_millis(200);

    /// Starts the services that the options of `writer` need.
    pub(crate) fn start(writer: &Arc<Writer>) -> Result<Self, StoreError> {
        let threads = Self { stop: Arc::new(AtomicBool::new(false)), handles: Mutex::default() };
        if writer.engine.files.vfs.environment().threads {
            // A thread that continues would keep the store locked.
            threads.start_all(writer).inspect_err(|_| threads.stop(writer))?;
        }
        Ok(threads)
    }

    fn start_all(&self, writer: &Arc<Writer>) -> Result<(), StoreError> {
        self.start_dispatch(writer)?;
        self.spawn(writer, "mq-flush", flush_round)?;
        self.spawn(writer, "mq-meta", meta_round)?;
        self.spawn(writer, "mq-expire", expire_round)?;
        if writer.engine.options.compaction_interval_ms.is_some() {
            self.spawn(writer, "mq-compact-due", compact_round)?;
        }
        if writer.engine.options.compaction_feed {
            self.spawn(writer, "mq-feed", feed_round)?;
        }
        if writer.engine.options.prewarm {
            self.spawn(writer, "mq-prepare", prepare_round)?;
        }
        if writer.engine.options.durability == Durability::Pooled {
            self.spawn(writer, "mq-commit", commit_round)?;
        }
        Ok(())
    }

    /// Starts the dispatch threads: fewer than the options say, but at least one, if the system cannot start more.
    fn start_dispatch(&self, writer: &Arc<Writer>) -> Result<(), StoreError> {
        for worker in 0..writer.engine.options.dispatch_workers(&writer.engine.files.vfs.environment()) {
            match self.spawn(writer, DISPATCH, if worker == 0 { dispatch_round } else { help_round }) {
                Err(error) if worker > 0 && error.is_out_of_resources() => break,
                started => started?,
            }
        }
        Ok(())
    }

    fn spawn(
        &self,
        writer: &Arc<Writer>,
        name: &str,
        round: fn(&Writer, &AtomicBool),
    ) -> Result<(), StoreError> {
        let weak: Weak<Writer> = Arc::downgrade(writer);
        let stop = Arc::clone(&self.stop);
        // If there are fewer processors than busy threads, appends have priority. The remaining records are dispatched
        // when the appends pause, by a flush, or by a reader that needs them.
        let comes_second = name == DISPATCH;
        let handle = spawn(name, move || {
            let _alarm = PanicGuard(Weak::clone(&weak));
            if comes_second {
                mqstore_io::os::lower_thread_priority();
            }
            while !stop.load(Ordering::Acquire) {
                let Some(writer) = weak.upgrade() else { return };
                if writer.engine.log.check().is_err() {
                    // Waiters must learn that no message will come.
                    writer.engine.queues.wake_all();
                    return;
                }
                round(&writer, &stop);
            }
        })
        .at(&writer.engine.files.root, "starting a thread")?;
        self.handles.lock().push(handle);
        Ok(())
    }

    /// Starts a thread for `task`. The thread ends with the task.
    pub(super) fn run(&self, writer: &Arc<Writer>, task: &Arc<dyn BackgroundTask>) -> Result<(), StoreError> {
        if !writer.engine.files.vfs.environment().threads {
            return Ok(());
        }
        let (weak, alarm) = (Arc::downgrade(task), Arc::downgrade(writer));
        let stop = Arc::clone(&self.stop);
        let handle = spawn(task.name(), move || {
            let alarm = PanicGuard(alarm);
            while !stop.load(Ordering::Acquire) {
                let Some(task) = weak.upgrade() else { return };
                let rest = match task.step() {
                    Ok(rest) => rest,
                    Err(StoreError::Closed { .. } | StoreError::Poisoned { .. }) => return,
                    Err(error) => {
                        if let Some(writer) = alarm.0.upgrade() {
                            let name = task.name();
                            writer.engine.files.notes.warn(format!("{name}: {error}; the store tries again"));
                        }
                        Self::AGAIN
                    }
                };
                if !stop.load(Ordering::Acquire) {
                    task.rest(rest);
                }
            }
        })
        .at(&writer.engine.files.root, "starting a thread")?;
        self.handles.lock().push(handle);
        Ok(())
    }

    /// Ends the services and waits for them.
    pub(crate) fn stop(&self, writer: &Writer) {
        self.stop.store(true, Ordering::Release);
        for task in writer.tasks() {
            task.wake();
        }
        writer.engine.signals.wake_all();
        writer.engine.meta.wake();
        writer.engine.log.stop_preparing();
        for handle in self.handles.lock().drain(..) {
            // If a task is the last owner of the store, its own thread closes the store and must not join itself.
            if handle.thread().id() != std::thread::current().id() {
                // A service that panicked has stopped the store already.
                let _ = handle.join();
            }
        }
    }
}

/// Starts a thread that removes the files that a compaction replaced; `None` if the system cannot start one. The next
/// job removes files that remain.
pub(crate) fn remove_replaced(files: &StoreFiles, replaced: ReplacedFiles) -> Option<JoinHandle<()>> {
    let own = files.clone();
    let remove = move || {
        let _ = replaced.sweep(&own);
    };
    spawn("mq-sweep", remove).ok()
}

/// Stops the store if the thread that owns this value panics, because its work is not done any more.
struct PanicGuard(Weak<Writer>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(writer) = self.0.upgrade()
        {
            let _ = writer.engine.log.poison("a background thread", "it panicked; stderr has the message");
        }
    }
}

fn dispatch_round(writer: &Writer, stop: &AtomicBool) {
    let behind =
        || writer.engine.dispatcher.position() < writer.engine.visible() || stop.load(Ordering::Acquire);
    if !writer.engine.signals.wait_for_log(LOOK, behind) {
        return;
    }
    // A failure has poisoned the log, which ends this service; after a full disk, the service waits and retries.
    if writer.engine.dispatch().is_err() {
        writer.engine.signals.pause(LOOK, || stop.load(Ordering::Acquire));
    } else {
        // While this thread sleeps here, appends need no system call to wake it, except those that a reader waits for.
        writer.engine.signals.let_records_gather(GATHER, || stop.load(Ordering::Acquire));
    }
}

/// A round of the other dispatch threads: they sleep as long as the first one keeps up.
fn help_round(writer: &Writer, stop: &AtomicBool) {
    let stopped = || stop.load(Ordering::Acquire);
    let much = || {
        writer.engine.visible().saturating_sub(writer.engine.dispatcher.position()) > RUN_BYTES || stopped()
    };
    if !writer.engine.signals.wait_for_backlog(LOOK, much) || stopped() {
        return;
    }
    if writer.engine.dispatch().is_err() {
        writer.engine.signals.pause(LOOK, stopped);
    }
}

fn flush_round(writer: &Writer, stop: &AtomicBool) {
    let due = || {
        stop.load(Ordering::Acquire)
            || writer.engine.log.appended() >= writer.engine.flusher.flush_due_offset()
    };
    let interval = Duration::from_millis(writer.engine.flusher.interval_ms());
    if writer.engine.signals.wait_for_flush(interval, due) && stop.load(Ordering::Acquire) {
        return;
    }
    let step = writer
        .engine
        .topics
        .store()
        .and_then(|()| writer.engine.flusher.step(writer.engine.files.clock.now_ms()));
    // A failed sync has poisoned the log; after any other failure (a full disk), the service waits and retries.
    if step.is_err() {
        writer.engine.signals.pause(LOOK, || stop.load(Ordering::Acquire));
    }
    if writer.engine.options.durable_only() {
        // More may be visible now.
        writer.engine.signals.log_grew();
    }
}

fn meta_round(writer: &Writer, stop: &AtomicBool) {
    writer.engine.meta.wait_until_due(SYNC_INTERVAL_MS, || stop.load(Ordering::Acquire));
    if stop.load(Ordering::Acquire) {
        return;
    }
    // A failure that stopped the log ends this service; after a full disk, the service waits and retries.
    if let Err(error) = writer.engine.meta.step(writer.engine.files.clock.now_ms()) {
        writer.engine.files.notes.warn(format!("cannot write the metadata ({error}); the store tries again"));
        writer.engine.signals.pause(LOOK, || stop.load(Ordering::Acquire));
    }
}

/// Minimum rest of the expiry service, however often appends reach a quota.
const FULL_REST: Duration = Duration::from_millis(100);

fn expire_round(writer: &Writer, stop: &AtomicBool) {
    // Rest first: the open checks the disks itself, and a program may expire by hand before.
    let rest = writer.cleaner.rest().max(Duration::from_millis(1));
    let stopped = || stop.load(Ordering::Acquire);
    let least = rest.min(FULL_REST);
    if writer.engine.signals.wait_to_expire(least, stopped) {
        return;
    }
    // An append that reaches a quota may be refused only because of segments that are already due.
    writer
        .engine
        .signals
        .wait_to_expire(rest.saturating_sub(least), || stopped() || writer.engine.signals.is_round_wanted());
    if stopped() {
        return;
    }
    writer.engine.signals.forget_wanted_round();
    if let Err(error) = writer.cleaner.step() {
        writer.engine.files.notes.warn(format!("cannot remove due files ({error}); the store tries again"));
    }
    if let Err(error) = writer.topic_retentions.step() {
        let note = format!("cannot apply the retention of topics ({error}); the store tries again");
        writer.engine.files.notes.warn(note);
    }
}

fn feed_round(writer: &Writer, stop: &AtomicBool) {
    let stopped = || stop.load(Ordering::Acquire);
    match writer.compactions.feed(&stopped) {
        Ok(true) => return,
        // Every call reports the failure that stopped the log.
        Ok(false) | Err(StoreError::Poisoned { .. }) => {}
        Err(error) => writer.compactions.warn_append_failed(&error),
    }
    writer.engine.signals.pause(LOOK, stopped);
}

fn compact_round(writer: &Writer, stop: &AtomicBool) {
    let Some(rest) = writer.compactions.next_delay() else { return };
    if writer
        .engine
        .signals
        .wait_to_expire(rest.max(Duration::from_millis(1)), || stop.load(Ordering::Acquire))
    {
        return;
    }
    if let Err(error) = writer.compactions.compact_if_due() {
        writer
            .engine
            .files
            .notes
            .warn(format!("cannot compact the due topics ({error}); the store tries again"));
    }
}

fn prepare_round(writer: &Writer, stop: &AtomicBool) {
    if !writer.engine.log.wait_to_prepare(LOOK) {
        return;
    }
    while !stop.load(Ordering::Acquire) {
        let begun = writer.engine.files.clock.monotonic();
        match writer.engine.log.prepare() {
            Ok(true) => {}
            // Every call reports the failure that stopped the log.
            Ok(false) | Err(StoreError::Poisoned { .. }) => return,
            Err(error) => {
                writer.engine.files.notes.warn(format!(
                    "cannot prepare the next part of the log ({error}); appends continue without it"
                ));
                writer.engine.signals.pause(LOOK, || stop.load(Ordering::Acquire));
                return;
            }
        }
        let rest = writer.engine.log.pause_after(writer.engine.files.clock.monotonic().saturating_sub(begun));
        if !rest.is_zero() {
            writer.engine.signals.pause(rest, || stop.load(Ordering::Acquire));
        }
    }
}

fn commit_round(writer: &Writer, stop: &AtomicBool) {
    let due = || writer.engine.commit_is_due() || stop.load(Ordering::Acquire);
    writer.engine.signals.wait_for_pool(Duration::from_millis(writer.engine.options.commit_interval_ms), due);
    // A failure has poisoned the log, which ends this service.
    let _ = writer.engine.log.make_readable();
    writer.engine.signals.log_grew();
}
