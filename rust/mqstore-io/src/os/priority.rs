//! The priority of threads, if there are fewer processors than threads.

/// The nice value of background threads: each gets about a tenth of the time of the process's other threads.
#[cfg(target_os = "linux")]
const BEHIND: i32 = 10;

/// Lowers the priority of this thread, so that threads of normal priority run first. It is a hint; nothing depends on
/// it.
pub fn lower_thread_priority() {
    // On Linux the call affects one thread. On other systems it would affect the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, BEHIND);
}
