//! A small generator of random numbers. One seed gives the same numbers on every machine.

/// Xorshift (Marsaglia's 13, 7, 17) over a seed spread by one multiplication.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give similar sequences, and the state must not be zero.
        let mut rng = Self((seed ^ 0x6A09_E667_F3BC_C909).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        rng.next();
        rng
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number from 0 to `bound - 1`; 0 if `bound` is 0. The high bits are more random than the low ones.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16).checked_rem(bound).unwrap_or(0)
    }

    /// Returns true with a probability of `eighths` in eight.
    pub(super) fn chance(&mut self, eighths: u64) -> bool {
        self.below(8) < eighths
    }
}
