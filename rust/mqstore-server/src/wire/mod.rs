//! The protocol: frames, greetings, requests, responses and errors, without any input or output.

pub mod failure;
pub mod frame;
pub mod greeting;
pub mod request;
pub mod response;
