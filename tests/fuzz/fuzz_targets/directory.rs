//! The entry of libFuzzer; what is done is in `mqstore_fuzz::directory`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mqstore_fuzz::directory(data));
