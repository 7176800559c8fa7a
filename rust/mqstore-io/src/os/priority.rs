//! Which thread runs where there are fewer processors than threads.

/// The priority of threads that step back: they get about a tenth of what others of the process get.
#[cfg(target_os = "linux")]
const BEHIND: i32 = 10;

/// Lets the threads of normal priority run before this one from now on. A request; nothing depends on it.
pub fn lower_thread_priority() {
    // To Linux a thread is a process of its own here; elsewhere all of the process would step back.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, BEHIND);
}
