//! Entry point for libFuzzer. The code is in `mqstore_fuzz::archive_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mqstore_fuzz::archive_file(data));
