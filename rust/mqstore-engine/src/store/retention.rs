//! What leaves the log, and when: expiry, retentions of topics, reclaimed space, the archive, and the confirmed offset.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::TopicRetention;
use mqstore_compaction::JobControl;

use super::{FindDeliveriesIn, OpenSide, Store};
use crate::archive::{ArchiveState, SealedLog};
use crate::read::view::View;
use crate::reclaim::{ReclaimReport, ReclaimRequest};
use crate::retention::unfinished::unfinished_of_files;
use crate::retention::{ExpireReport, SegmentHolder, preview_of};
use crate::topic_retention::{TopicUsage, due_messages, usage};

impl Store {
    /// Removes the segments that are due by the options `retention`, `retention_bytes` and `disk_force_ratio`, at any
    /// hour of the day. With `dry_run` it reports them and changes nothing; this also works for a store open for
    /// reading. Without a retention no segment is due. Then it applies the limits of topics
    /// ([`Retentions::set`]). A segment that is due by age stays for unfinished messages, as
    /// `retention_policy` and `group_timeout` say; the report names them.
    ///
    /// `carry_on` is called between two files. If it returns an error, the work ends with that error.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`]; [`StoreError::Busy`] inside a hook; errors of the file system. Files that are removed
    /// before an error stay removed.
    pub fn expire(
        &self,
        dry_run: bool,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<ExpireReport, StoreError> {
        self.check()?;
        match &self.inner.side {
            OpenSide::Reader(reader) if dry_run => {
                let end = reader.catch_up()?;
                let lookup = || unfinished_of_files(&**reader, end, self.retention().found_deliveries()?);
                let mut report = preview_of(&self.inner.files, reader.options(), end, &lookup)?;
                report.topics = due_messages(&**reader, &self.inner.older)?;
                Ok(report)
            }
            _ => self.writer("expire")?.expire(dry_run, carry_on),
        }
    }

    /// Sets the function that finds the delayed messages and half messages that wait in this store, unless there is
    /// one: the retention by age keeps their segments. The crate that delivers messages sets it.
    pub fn find_deliveries_with(&self, find: FindDeliveriesIn) {
        if self.inner.find_deliveries.set(find).is_ok()
            && let OpenSide::Writer(writer, _) = &self.inner.side
        {
            // Weakly: the writer is a part of the store.
            let store = self.downgrade();
            writer.cleaner.find_deliveries_with(Box::new(move || match store.upgrade() {
                Some(store) => find(&store),
                None => Ok(Vec::new()),
            }));
        }
    }

    /// Hides everything from log offset `offset` on from readers and dispatch; `None` removes the limit. For
    /// replication, where a record counts only after other machines have it. The limit is not stored: after a close,
    /// the log has everything it contains.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] if no record starts or ends at `offset`, or if readers may have seen bytes after
    /// it; [`StoreError::ReadOnly`].
    pub fn set_confirm_offset(&self, offset: Option<u64>) -> Result<(), StoreError> {
        self.engine("set the confirmed offset")?.set_confirm_offset(offset)
    }

    /// Returns the log offset that [`Self::set_confirm_offset`] set; `None` without a limit, and for a store open for
    /// reading.
    pub fn confirm_offset(&self) -> Result<Option<u64>, StoreError> {
        self.check()?;
        let limit = self.writing_engine().map(|engine| engine.dispatcher.limit());
        Ok(limit.filter(|limit| *limit != u64::MAX))
    }

    /// Frees the space of hidden records: rewrites the segments in which that pays, or with
    /// [`ReclaimRequest::erase`] those that have hidden records of these topics. With [`ReclaimRequest::dry_run`] it
    /// reports them and changes nothing. `control` ends or slows down the work.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`]; [`StoreError::Busy`] inside a hook, and during a rebuild or another call;
    /// [`StoreError::Corrupt`] if a rewritten segment differs from the old one, which stays then; errors of the system.
    /// Segments that are rewritten before an error stay so.
    pub fn reclaim(
        &self,
        request: &ReclaimRequest,
        control: &Arc<JobControl>,
    ) -> Result<ReclaimReport, StoreError> {
        self.writer("reclaim the space of hidden messages")?.reclaim.run(request, control)
    }

    /// Returns the retentions of topics, and what keeps segments.
    pub fn retention(&self) -> Retentions<'_> {
        Retentions(self)
    }

    /// Returns the archive of the store.
    pub fn archive(&self) -> Archive<'_> {
        Archive(self)
    }
}

/// The retentions of topics, and the messages that keep segments; from [`Store::retention`].
#[derive(Clone, Copy)]
pub struct Retentions<'a>(pub(super) &'a Store);

impl Retentions<'_> {
    /// Sets the limits of a topic: all of them, so a limit that is `None` does not apply any more. Durable when it
    /// returns. The next expiry applies them.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; [`StoreError::Refused`] for a topic of the system, a light queue or a compaction
    /// topic; [`StoreError::InvalidOption`] for a limit outside 1 to 2^53, and for a time that is longer than the
    /// retention of a store without an archive.
    pub fn set(&self, topic: &str, limits: TopicRetention) -> Result<(), StoreError> {
        self.0.writer("set the retention of a topic")?.topic_retentions.set(topic, limits)
    }

    /// Returns the limits of the topics that have a retention, by name.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn list(&self) -> Result<BTreeMap<Arc<str>, TopicRetention>, StoreError> {
        let view = self.0.usable_view()?;
        view.catch_up()?;
        Ok(view.retentions())
    }

    /// Returns the bytes of the topics that have a retention or hidden records, by name. Reads the whole log. Calls
    /// `carry_on` about once in 4 MiB; if it returns an error, the work ends with it.
    ///
    /// # Errors
    /// Errors of reads, and of `carry_on`.
    pub fn usage(
        &self,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<Vec<TopicUsage>, StoreError> {
        usage(&*self.0.usable_view()?, carry_on)
    }

    /// Returns the messages that keep segments before the active one from a deletion by age, by log offset: of each
    /// group in each topic the first unfinished one, and the first delayed message and half message that wait.
    ///
    /// # Errors
    /// Errors of reading the queues, the metadata log and the files of delayed messages.
    pub fn segment_holders(&self) -> Result<Vec<SegmentHolder>, StoreError> {
        self.0.check()?;
        let found = match &self.0.inner.side {
            OpenSide::Writer(writer, _) => writer.cleaner.unfinished()?,
            OpenSide::Reader(reader) => {
                unfinished_of_files(&**reader, reader.catch_up()?, self.found_deliveries()?)?
            }
        };
        let active = self.0.view().list().segments().last().map_or(0, |segment| segment.base_offset());
        let groups = found.groups.into_iter().map(|group| group.holder);
        let mut holders: Vec<_> =
            groups.chain(found.deliveries).filter(|holder| holder.log_offset < active).collect();
        holders.sort_by_key(|holder| holder.log_offset);
        Ok(holders)
    }

    fn found_deliveries(self) -> Result<Vec<SegmentHolder>, StoreError> {
        self.0.inner.find_deliveries.get().map_or_else(|| Ok(Vec::new()), |find| find(self.0))
    }
}

/// The archive of a store, and the segments that it may contain; from [`Store::archive`].
#[derive(Clone, Copy)]
pub struct Archive<'a>(pub(super) &'a Store);

impl Archive<'_> {
    /// Returns the archive of the store; `None` if it has none.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a damaged file; errors of the system.
    pub fn state(&self) -> Result<Option<ArchiveState>, StoreError> {
        self.0.check()?;
        ArchiveState::load(self.0.files())
    }

    /// Sets the archive of the store, also if its file is damaged; `None` removes it. The change is durable when the
    /// call returns, and a removal of segments that starts after it obeys it.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`]; [`StoreError::Busy`] inside a hook; errors of the system.
    pub fn set(&self, archive: Option<&ArchiveState>) -> Result<(), StoreError> {
        self.0.writer("configure the archive")?.cleaner.set_archive(&mut |_| Ok(archive.cloned()))
    }

    /// Replaces the archive by `next`, if it still has the settings `settings`. Its log offset only moves forward.
    /// Returns the archive as it is then.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub fn advance(&self, settings: &str, next: &ArchiveState) -> Result<Option<ArchiveState>, StoreError> {
        self.0.writer("record the end of the archive")?.cleaner.advance_archive(settings, next)
    }

    /// Returns the segments of the log, for a program that copies those that never change again.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn sealed_log(&self) -> Result<SealedLog<'_>, StoreError> {
        Ok(SealedLog::new(self.0.usable_view()?, self.0.writing_engine().map(|engine| &**engine)))
    }
}
