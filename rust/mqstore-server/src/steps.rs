//! Steps that tests of shared stores leave out, to see that they notice. Product builds do all of them.

/// Whether to do the step called `name`.
#[cfg(not(test))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "a product build must contain nothing of it")]
pub(crate) const fn does(name: &'static str) -> bool {
    let _ = name;
    true
}

/// The environment variable that names the step that a test process leaves out.
#[cfg(test)]
const LEFT_OUT: &str = "MQSTORE_LEFT_OUT";

/// Whether to do the step called `name`.
#[cfg(test)]
pub(crate) fn does(name: &'static str) -> bool {
    static STEP: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var(LEFT_OUT).ok());
    STEP.as_deref() != Some(name)
}

/// Runs a test of this crate in another process, with the step left out and a variable set. Returns whether it passes, and
/// what it printed.
#[cfg(test)]
pub(crate) fn passes_without(step: &str, test: &str, (variable, value): (&str, &str)) -> (bool, String) {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, value)
        .env(LEFT_OUT, step)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}
