//! Counts the hidden records of each segment, and chooses the segments whose rewrite pays.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_compaction::TaskMeter;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, Segment};

use super::report::{KeptSegment, ReclaimedSegment, ReclaimedTopic};
use super::rules::{LAST_SEGMENTS, RecordRules, Standing};
use super::stretch::Stretch;
use crate::write::writer::Writer;

/// A rewrite pays if it frees this share of the segment, in percent.
const PAYS_PERCENT: u64 = 25;

/// The same if less than half of the segment must be copied.
const PAYS_PERCENT_IF_DEAD: u64 = 5;

/// The counts of one segment.
#[derive(Debug)]
pub(super) struct SurveyedSegment {
    /// The segment.
    pub segment: Arc<Segment>,
    /// Bytes of the records that reads find.
    live_bytes: u64,
    /// Bytes of the hidden records.
    hidden_bytes: u64,
    /// Bytes of the hidden records that placeholders may replace.
    pub free_bytes: u64,
    /// The topics of its records.
    topics: BTreeMap<Arc<str>, TopicBytes>,
    /// Why it may not be rewritten.
    stays: Option<String>,
}

/// The bytes of one topic in a segment.
#[derive(Clone, Copy, Debug, Default)]
struct TopicBytes {
    live: u64,
    hidden: u64,
    /// Bytes of whole pages that placeholders would free.
    estimated: u64,
}

/// The counts of the whole log.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The segments, in log order.
    pub segments: Vec<SurveyedSegment>,
}

/// A stretch, and the bytes of each topic in it.
struct OpenStretch {
    stretch: Stretch,
    topics: BTreeMap<Arc<str>, u64>,
}

/// Reads the log and counts.
///
/// # Errors
/// Errors of reads; the end of `meter`.
pub(super) fn survey(
    writer: &Writer,
    rules: &mut RecordRules<'_>,
    meter: &mut TaskMeter<'_>,
) -> Result<Survey, StoreError> {
    let (rewritable, why) = writer.rewritable_segments();
    let (list, end) = (writer.log.list(), writer.log.readable());
    let mut found = Survey::default();
    for (number, segment) in list.segments().iter().enumerate() {
        let stays = match rewritable.get(number) {
            Some(may) if Arc::ptr_eq(may, segment) => None,
            _ if number + LAST_SEGMENTS >= list.segments().len() => {
                Some("it is one of the last two segments".to_owned())
            }
            _ => Some(why.clone().unwrap_or_else(|| "the log changed meanwhile".to_owned())),
        };
        let limit = segment.end_offset().min(end);
        loop {
            let blocks = rules.blocks();
            let mut surveyed = SurveyedSegment::new(segment, stays.clone());
            let mut scanner =
                LogScanner::new(Arc::clone(&list), segment.base_offset(), limit, ScanChecks { crc: false });
            scanner.read_once();
            match surveyed.count(&mut scanner, rules, meter) {
                // The oldest segments expired.
                Err(error) if error.is_gone() => break,
                counted => counted?,
            }
            // A record that must stay keeps the records of its queue before it in the segment, too.
            if rules.blocks() == blocks {
                found.segments.push(surveyed);
                break;
            }
        }
    }
    Ok(found)
}

impl SurveyedSegment {
    fn new(segment: &Arc<Segment>, stays: Option<String>) -> Self {
        let (segment, topics) = (Arc::clone(segment), BTreeMap::new());
        Self { segment, live_bytes: 0, hidden_bytes: 0, free_bytes: 0, topics, stays }
    }

    /// Counts the records of the segment.
    fn count(
        &mut self,
        scanner: &mut LogScanner,
        rules: &mut RecordRules<'_>,
        meter: &mut TaskMeter<'_>,
    ) -> Result<(), StoreError> {
        let base = self.segment.base_offset();
        let mut open: Option<OpenStretch> = None;
        loop {
            let at = scanner.position();
            match scanner.next_item()? {
                ScanItem::Record(record) if record.is_placeholder() => {}
                ScanItem::Record(record) => {
                    let (size, bytes) = (record.size, u64::from(record.size));
                    let topic = rules.topic(record.topic);
                    let standing = rules.standing(&topic, &record, (base, at))?;
                    let counted = self.topics.entry(Arc::clone(&topic.name)).or_default();
                    let (own, total) = match standing {
                        Standing::Live => (&mut self.live_bytes, &mut counted.live),
                        Standing::Hidden | Standing::Replaceable => {
                            (&mut self.hidden_bytes, &mut counted.hidden)
                        }
                    };
                    *own += bytes;
                    *total += bytes;
                    if standing == Standing::Replaceable {
                        self.free_bytes += bytes;
                        if !open.as_mut().is_some_and(|open| open.stretch.extend(at, size)) {
                            let new =
                                OpenStretch { stretch: Stretch::of(at, &record), topics: BTreeMap::new() };
                            self.end_stretch(open.replace(new));
                        }
                        if let Some(open) = &mut open {
                            *open.topics.entry(Arc::clone(&topic.name)).or_default() += bytes;
                        }
                    }
                    meter.read(size)?;
                }
                ScanItem::Filler { .. } => {}
                ScanItem::End { .. } => break,
                ScanItem::Damaged(damage) => {
                    let place = damage.file_offset;
                    let why = format!("it is damaged at offset {place}: {}; repair it first", damage.reason);
                    self.stays.get_or_insert(why);
                    if scanner.skip(&damage)?.is_none() {
                        break;
                    }
                }
            }
        }
        self.end_stretch(open);
        meter.look()
    }
}

impl Survey {
    /// Returns the rows of the topics with hidden records.
    pub(super) fn topics(&self) -> Vec<ReclaimedTopic> {
        let mut totals: BTreeMap<&Arc<str>, TopicBytes> = BTreeMap::new();
        for (topic, bytes) in self.segments.iter().flat_map(|segment| &segment.topics) {
            let total = totals.entry(topic).or_default();
            total.live += bytes.live;
            total.hidden += bytes.hidden;
            total.estimated += bytes.estimated;
        }
        let rows = totals.into_iter().filter(|(_, total)| total.hidden > 0);
        let rows = rows.map(|(topic, total)| ReclaimedTopic {
            topic: topic.to_string(),
            live_bytes: total.live,
            dead_bytes: total.hidden,
            estimated_bytes: total.estimated,
            reclaimed_bytes: 0,
        });
        rows.collect()
    }

    /// Returns how many segments from the first one on to rewrite. A queue loses its records in log order, so the
    /// choice has no gaps. It ends with a segment whose rewrite pays, and pays as a whole. With `erase` it ends with the
    /// last segment that has records to replace.
    pub(super) fn choose(&self, erase: bool) -> usize {
        let (mut bytes, mut copied, mut freed, mut chosen) = (0, 0, 0, 0);
        for (number, segment) in self.segments.iter().enumerate() {
            if segment.stays.is_some() {
                break;
            }
            if segment.free_bytes == 0 {
                continue;
            }
            bytes += segment.segment.len();
            copied += segment.kept_bytes();
            freed += segment.estimated_bytes();
            if erase || (segment.pays() && pays(bytes, copied, freed)) {
                chosen = number + 1;
            }
        }
        chosen
    }

    /// Returns the segments with hidden records that stay, if those before segment number `rewritten` are rewritten as
    /// far as they have replaceable records. `failed` is why this segment had to stay.
    pub(super) fn kept(&self, rewritten: usize, failed: Option<&str>) -> Vec<KeptSegment> {
        let mut kept = Vec::new();
        for (number, segment) in self.segments.iter().enumerate() {
            if segment.hidden_bytes == 0 || number < rewritten && segment.free_bytes > 0 {
                continue;
            }
            let reason = match failed.filter(|_| number >= rewritten && segment.free_bytes > 0) {
                Some(why) if number == rewritten => why.to_owned(),
                Some(_) => "an earlier segment stays, and a queue loses its records in log order".to_owned(),
                None => segment.why_kept(),
            };
            kept.push(segment.kept(reason));
        }
        kept
    }
}

impl SurveyedSegment {
    /// Divides the pages that a placeholder would free among the topics of its records.
    fn end_stretch(&mut self, open: Option<OpenStretch>) {
        let Some(OpenStretch { stretch, topics }) = open else { return };
        let freed = u128::from(stretch.freed_bytes(self.segment.base_offset()));
        let bytes = u128::from((stretch.end - stretch.start).max(1));
        for (topic, own) in topics {
            self.topics.entry(topic).or_default().estimated += (freed * u128::from(own) / bytes) as u64;
        }
    }

    fn estimated_bytes(&self) -> u64 {
        self.topics.values().map(|bytes| bytes.estimated).sum()
    }

    /// Returns the bytes of whole pages that placeholders would free for `topic`.
    pub(super) fn estimated_of(&self, topic: &str) -> u64 {
        self.topics.get(topic).map_or(0, |bytes| bytes.estimated)
    }

    /// Bytes of the records that a rewrite copies.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.live_bytes + self.hidden_bytes - self.free_bytes
    }

    fn pays(&self) -> bool {
        pays(self.segment.len(), self.kept_bytes(), self.estimated_bytes())
    }

    fn why_kept(&self) -> String {
        if let Some(why) = &self.stays {
            return why.clone();
        }
        if self.free_bytes == 0 {
            return "brokers need its hidden records: queue files or light queues lead to them".to_owned();
        }
        let (freed, bytes) = (self.estimated_bytes(), self.segment.len());
        format!("a rewrite does not pay: it would free {freed} of {bytes} bytes")
    }

    /// Returns the report of a rewrite that freed `reclaimed_bytes`.
    pub(super) fn report(&self, reclaimed_bytes: u64) -> ReclaimedSegment {
        ReclaimedSegment {
            path: self.segment.path(),
            log_offset: self.segment.base_offset(),
            bytes: self.segment.len(),
            live_bytes: self.kept_bytes(),
            dead_bytes: self.free_bytes,
            estimated_bytes: self.estimated_bytes(),
            reclaimed_bytes,
        }
    }

    fn kept(&self, reason: String) -> KeptSegment {
        KeptSegment {
            path: self.segment.path(),
            log_offset: self.segment.base_offset(),
            dead_bytes: self.hidden_bytes,
            estimated_bytes: self.estimated_bytes(),
            reason,
        }
    }
}

/// Whether it pays to free `freed` of `bytes` bytes if `copied` bytes are copied.
fn pays(bytes: u64, copied: u64, freed: u64) -> bool {
    let least = if copied < bytes / 2 { PAYS_PERCENT_IF_DEAD } else { PAYS_PERCENT };
    freed > 0 && freed >= bytes / 100 * least
}
