//! Requests to the port of a broker: its facts and its tables.

use std::io;
use std::path::Path;
use std::time::Duration;

use mqstore::error::StoreError;
use mqstore::replication::metadata::{Answer, BrokerFacts, Request, Tables, TablesReader, answer};

use crate::deadline::Deadline;
use crate::tcp::Connection;

/// How long a broker may take for all answers. The copy does not continue meanwhile.
const ANSWERS: Duration = Duration::from_secs(5);

/// The address of a broker.
pub(super) struct BrokerAddress(String);

/// A connection for several requests.
struct Session {
    connection: Connection,
    number: i32,
    until: Deadline,
}

impl BrokerAddress {
    pub(super) fn new(address: String) -> Self {
        Self(address)
    }

    /// Returns the facts of the broker.
    ///
    /// # Errors
    /// `Io` if it does not answer.
    pub(super) fn facts(&self) -> Result<BrokerFacts, StoreError> {
        let read = || {
            let mut session = self.session()?;
            let mut facts = BrokerFacts::default();
            facts.read_settings(&session.ask(&Request::Settings)?.body);
            facts.read_figures(&session.ask(&Request::Figures)?.body);
            Ok(facts)
        };
        read().map_err(|error| self.failed(error))
    }

    /// Returns the tables of the broker, and the end of its log after they were read.
    ///
    /// # Errors
    /// `Io` if it does not answer.
    pub(super) fn tables(&self) -> Result<Tables, StoreError> {
        let read = || {
            let mut session = self.session()?;
            let mut tables = TablesReader::default();
            while let Some(request) = tables.next_request() {
                let answer = session.ask(request)?;
                tables.take(&answer).map_err(io::Error::other)?;
            }
            Ok(tables.finish())
        };
        read().map_err(|error| self.failed(error))
    }

    fn session(&self) -> io::Result<Session> {
        let until = Deadline::after(Some(ANSWERS));
        Ok(Session { connection: Connection::open(&self.0)?, number: 0, until })
    }

    fn failed(&self, error: io::Error) -> StoreError {
        StoreError::io(Path::new(&self.0), "asking the broker for its tables", error)
    }
}

impl Session {
    fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        self.number += 1;
        self.connection.send(&request.encode(self.number))?;
        let mut received = Vec::new();
        loop {
            if let Some(answer) = answer(&received, self.number).map_err(io::Error::other)? {
                return Ok(answer);
            }
            if self.until.is_over() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
            }
            let take = |bytes: &[u8], _| received.extend_from_slice(bytes);
            self.connection.receive(self.until.left(ANSWERS), take)?;
        }
    }
}
