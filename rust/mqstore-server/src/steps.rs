//! Steps that the model test of shared stores can leave out, to see that it notices. Product builds do all of them.

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
pub(crate) const LEFT_OUT: &str = "MQSTORE_LEFT_OUT";

/// Whether to do the step called `name`.
#[cfg(test)]
pub(crate) fn does(name: &'static str) -> bool {
    static STEP: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var(LEFT_OUT).ok());
    STEP.as_deref() != Some(name)
}
