//! Appends the messages of a step, each once.
//!
//! A step begins with its journal, before its first message is appended. The next driver that finds a journal ends its
//! step first: the messages in the log after the end that the journal names are the first messages of the step, also if
//! another program appended messages meanwhile, so the others follow. When all are durable, the name of the step is
//! noted, and then the journal goes. A step that has not begun leaves only files that are never read.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::NewMessage;
use mqstore_format::Host;
use mqstore_io::switch;

use super::files::StepBlocks;
use super::journal::{Journal, StagedStep};
use crate::engine::Engine;
use crate::read::cursor::LogCursor;
use crate::read::view::{StoreView, View};
use crate::write::append_marks::{AppendMarks, MessageOrigin};
use crate::write::staged_batch::staged_messages;

/// Number of records that the search in the log reads at once.
const RECORDS: usize = 256;

/// A step in progress.
pub struct StagedWrite {
    engine: Arc<Engine>,
    born_host: Host,
    journal: Journal,
    blocks: StepBlocks,
    /// First messages of the blocks to come that are in the log already.
    present: u64,
    /// Whether a message of the step can be in the log.
    has_begun: bool,
    is_over: bool,
}

impl StagedWrite {
    /// Writes the journal of a step whose files are all there.
    pub(crate) fn begin(engine: &Engine, step: StagedStep) -> Result<(), StoreError> {
        // The log is durable up to the recorded end before the journal is.
        switch::step("staged.sync_log", || engine.flush())?;
        StepBlocks::of(&engine.files, &step).check()?;
        Journal { step, log: engine.log.appended() }.save(&engine.files)
    }

    /// Returns the step that the journal names.
    pub(crate) fn resume(engine: &Arc<Engine>, born_host: Host) -> Result<Option<Self>, StoreError> {
        let Some(journal) = Journal::load(&engine.files)? else { return Ok(None) };
        let present = present(engine, &journal)?;
        let blocks = StepBlocks::of(&engine.files, &journal.step);
        let (engine, has_begun) = (Arc::clone(engine), present > 0);
        Ok(Some(Self { engine, born_host, journal, blocks, present, has_begun, is_over: false }))
    }

    /// Appends the next block of messages, and returns their number; `None` once the step is done and durable.
    ///
    /// # Errors
    /// Those of an append; [`StoreError::Corrupt`] for a damaged file. If no message of the step is in the log, the
    /// whole step is given up. Otherwise the next one who resumes it continues.
    pub fn next_block(&mut self) -> Result<Option<u64>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        let end = self.engine.log.appended();
        match self.append_block() {
            Ok(None) => {
                switch::step("staged.sync_rows", || self.engine.flush())?;
                self.journal.note_done(&self.engine.files)?;
                self.leave().map(|()| None)
            }
            Ok(appended) => {
                self.has_begun = true;
                Ok(appended)
            }
            Err(error) => {
                // An append can fail after its records are in the log, and a store that was stopped can have a part of
                // them.
                self.has_begun |= self.engine.log.appended() != end || self.engine.check().is_err();
                if !self.has_begun {
                    self.leave()?;
                }
                Err(error)
            }
        }
    }

    /// Removes the journal of a step that is done or given up.
    fn leave(&mut self) -> Result<(), StoreError> {
        self.is_over = true;
        Journal::remove(&self.engine.files)
    }

    fn append_block(&mut self) -> Result<Option<u64>, StoreError> {
        while let Some(block) = self.blocks.next()? {
            if self.present >= block.messages {
                self.present -= block.messages;
                continue;
            }
            let bytes = block.read()?;
            let messages = staged_messages(&bytes).ok_or_else(|| block.damaged())?;
            let wanted = messages.get(self.present as usize..).unwrap_or_default();
            let origin = |message: &NewMessage<'_>| MessageOrigin {
                sys_flag: message.sys_flag,
                born_host: self.born_host,
                reconsume_times: 0,
            };
            let origins: Vec<_> = wanted.iter().map(origin).collect();
            self.engine.append_marked(wanted, AppendMarks::Origins(&origins))?;
            self.present = 0;
            return Ok(Some(wanted.len() as u64));
        }
        Ok(None)
    }
}

/// Returns the number of messages of a step that are in the log. They are the first ones of the step.
fn present(engine: &Arc<Engine>, journal: &Journal) -> Result<u64, StoreError> {
    let end = engine.log.appended();
    if end <= journal.log {
        return Ok(0);
    }
    if engine.log.list().min_offset() > journal.log {
        return Err(journal.unknown(&engine.files));
    }
    // Also records that are not visible yet, and those of a topic that was deleted meanwhile.
    let view = StoreView::of_log(Arc::<Engine>::clone(engine));
    let mut cursor = LogCursor::new(view, journal.log, end).with_deleted();
    let mut staged =
        StagedIds { blocks: StepBlocks::of(&engine.files, &journal.step), ids: Vec::new().into_iter() };
    let (mut found, mut expected) = (0, staged.next()?);
    loop {
        let records = cursor.next_batch(RECORDS)?;
        if records.is_empty() {
            return Ok(found);
        }
        for record in &records {
            let Some((topic, key)) = &expected else { return Ok(found) };
            let view = record.view().map_err(|error| {
                StoreError::format(&engine.files.commit_log(), record.commit_log_offset, &error)
            })?;
            if view.topic == topic && view.unique_key() == Some(key) {
                found += 1;
                expected = staged.next()?;
            }
        }
    }
}

/// Topic and unique key of each message of a step.
struct StagedIds {
    blocks: StepBlocks,
    ids: std::vec::IntoIter<(String, String)>,
}

impl StagedIds {
    fn next(&mut self) -> Result<Option<(String, String)>, StoreError> {
        loop {
            if let Some(found) = self.ids.next() {
                return Ok(Some(found));
            }
            let Some(block) = self.blocks.next()? else { return Ok(None) };
            let bytes = block.read()?;
            let messages = staged_messages(&bytes).ok_or_else(|| block.damaged())?;
            let ids = messages
                .iter()
                .map(|one| (one.topic.to_owned(), one.unique_key.unwrap_or_default().to_owned()));
            self.ids = ids.collect::<Vec<_>>().into_iter();
        }
    }
}
