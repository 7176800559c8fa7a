//! TODO_HEADER

#[cfg(test)]
mod tests;

