"""Results at URLs: their targets, `fetch` and `clean`. `rust/mqstore-results` has the protocol."""
