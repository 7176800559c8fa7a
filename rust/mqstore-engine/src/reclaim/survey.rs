//! Counts the hidden records of each segment, and chooses the segments whose rewrite pays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_compaction::TaskMeter;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, Segment, SegmentList};

use super::hidden_run::HiddenRun;
use super::report::{KeptSegment, ReclaimedSegment, ReclaimedTopic};
use super::rules::{RecordRules, RecordState};

/// A rewrite pays if it frees this share of the segment, in percent.
const PAYS_PERCENT: u64 = 25;

/// The same if less than half of the segment must be copied.
const PAYS_PERCENT_IF_DEAD: u64 = 5;

/// Why hidden records stay that the rules do not let go.
const NEEDED: &str = "its hidden records are needed: queue files or light queues lead to them, or they are deliveries of \
                      delayed messages";

/// The counts of one segment.
#[derive(Debug)]
pub(super) struct SurveyedSegment {
    /// The segment.
    pub segment: Arc<Segment>,
    /// Bytes up to the end of the last record.
    bytes: u64,
    /// Bytes of the records that reads find.
    live_bytes: u64,
    /// Bytes of the hidden records.
    hidden_bytes: u64,
    /// Bytes of the hidden records of the topics that the call is about.
    wanted_bytes: u64,
    /// Bytes of records of other topics with the content of hidden messages that the call erases.
    copied_bytes: u64,
    /// The topics of these records.
    copied_to: BTreeSet<Arc<str>>,
    /// Bytes of the hidden records that placeholders may replace.
    pub free_bytes: u64,
    /// The topics for which placeholders would free whole pages, by name, and the bytes of these pages. A log can have
    /// many segments, and each of them records of many topics, so it has no others.
    estimates: Vec<(Arc<str>, u64)>,
    /// Why it may not be rewritten.
    stays: Option<String>,
}

/// The bytes of topics, by name.
type TopicTable = BTreeMap<Arc<str>, TopicBytes>;

/// The bytes of one topic.
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
    /// The end of the log.
    pub end: u64,
    /// The segments, in log order.
    pub segments: Vec<SurveyedSegment>,
    /// The topics of all records.
    totals: TopicTable,
}

/// A run, and the bytes of each topic in it.
struct OpenRun {
    run: HiddenRun,
    topics: BTreeMap<Arc<str>, u64>,
}

/// Reads the segments of `list` up to `end` and counts. Only the first ones can be rewritten; `why` says the reason of
/// the others.
///
/// # Errors
/// Errors of reads; the end of `meter`.
pub(super) fn survey(
    list: &Arc<SegmentList>,
    end: u64,
    (rewritable, why): (usize, Option<String>),
    rules: &mut RecordRules<'_>,
    meter: &mut TaskMeter<'_>,
) -> Result<Survey, StoreError> {
    let mut found = Survey { end, ..Survey::default() };
    for (number, segment) in list.segments().iter().enumerate() {
        let stays = why.clone().filter(|_| number >= rewritable);
        let limit = segment.end_offset().min(end);
        loop {
            let blocks = rules.blocks();
            let mut surveyed = SurveyedSegment::new(segment, stays.clone());
            let mut scanner =
                LogScanner::new(Arc::clone(list), segment.base_offset(), limit, ScanChecks { crc: false });
            scanner.read_once();
            match surveyed.count(&mut scanner, rules, meter) {
                // The oldest segments expired.
                Err(error) if error.is_gone() => break,
                counted => {
                    let topics = counted?;
                    // A record that must stay keeps the records of its queue before it in the segment, too.
                    if rules.blocks() == blocks {
                        found.add(surveyed, &topics);
                        break;
                    }
                }
            }
        }
    }
    Ok(found)
}

impl SurveyedSegment {
    fn new(segment: &Arc<Segment>, stays: Option<String>) -> Self {
        let (segment, estimates) = (Arc::clone(segment), Vec::new());
        Self {
            segment,
            bytes: 0,
            live_bytes: 0,
            hidden_bytes: 0,
            wanted_bytes: 0,
            copied_bytes: 0,
            copied_to: BTreeSet::new(),
            free_bytes: 0,
            estimates,
            stays,
        }
    }

    /// Counts the records of the segment. Returns the bytes of its topics.
    fn count(
        &mut self,
        scanner: &mut LogScanner,
        rules: &mut RecordRules<'_>,
        meter: &mut TaskMeter<'_>,
    ) -> Result<TopicTable, StoreError> {
        let base = self.segment.base_offset();
        let mut topics = TopicTable::new();
        let mut open: Option<OpenRun> = None;
        loop {
            let at = scanner.position();
            self.bytes = at - base;
            match scanner.next_item()? {
                ScanItem::Record(record) if record.is_placeholder() => {}
                ScanItem::Record(record) => {
                    let (size, bytes) = (record.size, u64::from(record.size));
                    let topic = rules.topic(record.topic);
                    let state = rules.state_of(&topic, &record, (base, at))?;
                    let counted = topics.entry(Arc::clone(&topic.name)).or_default();
                    let (own, total) = match state {
                        RecordState::Live => (&mut self.live_bytes, &mut counted.live),
                        RecordState::Hidden | RecordState::Replaceable => {
                            self.wanted_bytes += if topic.is_wanted { bytes } else { 0 };
                            (&mut self.hidden_bytes, &mut counted.hidden)
                        }
                    };
                    *own += bytes;
                    *total += bytes;
                    if rules.is_copy_of_erased(&topic, &record, (at, state)) {
                        self.copied_bytes += bytes;
                        self.copied_to.insert(Arc::clone(&topic.name));
                    }
                    if state == RecordState::Replaceable {
                        self.free_bytes += bytes;
                        if !open.as_mut().is_some_and(|open| open.run.extend(at, size)) {
                            let new = OpenRun { run: HiddenRun::of(at, &record), topics: BTreeMap::new() };
                            end_run(base, open.replace(new), &mut topics);
                        }
                        if let Some(open) = &mut open {
                            *open.topics.entry(Arc::clone(&topic.name)).or_default() += bytes;
                        }
                    }
                    meter.read(size)?;
                }
                ScanItem::Filler { .. } | ScanItem::End { .. } => break,
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
        end_run(base, open, &mut topics);
        let freed = topics.iter().filter(|(_, bytes)| bytes.estimated > 0);
        self.estimates = freed.map(|(topic, bytes)| (Arc::clone(topic), bytes.estimated)).collect();
        meter.look()?;
        Ok(topics)
    }
}

impl Survey {
    fn add(&mut self, segment: SurveyedSegment, topics: &TopicTable) {
        for (topic, bytes) in topics {
            let total = self.totals.entry(Arc::clone(topic)).or_default();
            total.live += bytes.live;
            total.hidden += bytes.hidden;
            total.estimated += bytes.estimated;
        }
        self.segments.push(segment);
    }

    /// Returns the rows of the topics with hidden records.
    pub(super) fn topics(&self) -> Vec<ReclaimedTopic> {
        let rows = self.totals.iter().filter(|(_, total)| total.hidden > 0);
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
            bytes += segment.bytes;
            copied += segment.kept_bytes();
            freed += segment.estimated_bytes();
            if erase || (segment.pays() && pays(bytes, copied, freed)) {
                chosen = number + 1;
            }
        }
        chosen
    }

    /// Returns the segments with wanted hidden records that stay, if those before segment number `rewritten` are
    /// rewritten as far as they have replaceable records. `failed` is why this segment had to stay.
    pub(super) fn kept(&self, rewritten: usize, failed: Option<&str>) -> Vec<KeptSegment> {
        let mut kept = Vec::new();
        for (number, segment) in self.segments.iter().enumerate() {
            if segment.segment.is_retired() {
                continue;
            }
            let replaced = if number < rewritten { segment.free_bytes } else { 0 };
            let left = segment.wanted_bytes - replaced;
            if left + segment.copied_bytes == 0 {
                continue;
            }
            let reason = match failed.filter(|_| number >= rewritten && segment.free_bytes > 0) {
                Some(why) if number == rewritten => why.to_owned(),
                Some(_) => "an earlier segment stays, and a queue loses its records in log order".to_owned(),
                None if left == 0 => String::new(),
                None if replaced > 0 => NEEDED.to_owned(),
                None => segment.why_kept(),
            };
            let reasons = [reason, segment.why_copied()];
            let reasons: Vec<&str> =
                reasons.iter().map(String::as_str).filter(|why| !why.is_empty()).collect();
            let estimated = if replaced > 0 { 0 } else { segment.estimated_bytes() };
            kept.push(segment.kept((left + segment.copied_bytes, estimated), reasons.join("; ")));
        }
        kept
    }
}

impl SurveyedSegment {
    fn estimated_bytes(&self) -> u64 {
        self.estimates.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the bytes of whole pages that placeholders would free for `topic`.
    pub(super) fn estimated_of(&self, topic: &str) -> u64 {
        let found = self.estimates.binary_search_by(|(name, _)| (**name).cmp(topic));
        found.ok().and_then(|at| self.estimates.get(at)).map_or(0, |(_, bytes)| *bytes)
    }

    /// Bytes of the records that a rewrite copies.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.live_bytes + self.hidden_bytes - self.free_bytes
    }

    fn pays(&self) -> bool {
        pays(self.bytes, self.kept_bytes(), self.estimated_bytes())
    }

    fn why_kept(&self) -> String {
        if let Some(why) = &self.stays {
            return why.clone();
        }
        if self.free_bytes == 0 {
            return NEEDED.to_owned();
        }
        let (freed, bytes) = (self.estimated_bytes(), self.bytes);
        format!("a rewrite does not pay: it would free {freed} of {bytes} bytes")
    }

    /// Returns why the content of erased messages stays; nothing if it does not.
    fn why_copied(&self) -> String {
        if self.copied_to.is_empty() {
            return String::new();
        }
        let topics: Vec<&str> = self.copied_to.iter().map(|topic| &**topic).collect();
        let topics = topics.join(", ");
        format!(
            "the topics {topics} have copies of these messages: delayed messages, transactions or dead letters"
        )
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

    fn kept(&self, (dead_bytes, estimated_bytes): (u64, u64), reason: String) -> KeptSegment {
        KeptSegment {
            path: self.segment.path(),
            log_offset: self.segment.base_offset(),
            dead_bytes,
            estimated_bytes,
            reason,
        }
    }
}

/// Divides the pages that a placeholder would free in a segment that begins at `base` among the topics of its records.
fn end_run(base: u64, open: Option<OpenRun>, topics: &mut TopicTable) {
    let Some(OpenRun { run, topics: parts }) = open else { return };
    let freed = u128::from(run.freed_bytes(base));
    let bytes = u128::from((run.end - run.start).max(1));
    for (topic, own) in parts {
        topics.entry(topic).or_default().estimated += (freed * u128::from(own) / bytes) as u64;
    }
}

/// Whether it pays to free `freed` of `bytes` bytes if `copied` bytes are copied.
fn pays(bytes: u64, copied: u64, freed: u64) -> bool {
    let least = if copied < bytes / 2 { PAYS_PERCENT_IF_DEAD } else { PAYS_PERCENT };
    freed > 0 && freed >= bytes / 100 * least
}

#[cfg(test)]
mod tests {
    use mqstore_base::options::{OpenMode, StoreOptions};
    use mqstore_base::topic_floors::TopicRetention;
    use mqstore_compaction::JobControl;

    use super::super::report::ReclaimRequest;
    use super::*;
    use crate::testing::{World, put};

    #[test]
    fn a_segment_has_only_the_topics_that_it_can_free() {
        let (world, _, _) = World::simulated();
        let options = StoreOptions {
            segment_bytes: 128 << 10,
            queue_file_entries: 4,
            dispatch_threads: Some(0),
            ..StoreOptions::default()
        };
        let store = world.open(OpenMode::Create, &options).unwrap();
        for number in 0..40 {
            put(&store, "hidden", 0, &[1; 9000], "k");
            put(&store, &format!("live-{}", number % 20), 0, &[2; 5000], "k");
        }
        let limits = TopicRetention { max_messages: Some(4), ..TopicRetention::default() };
        store.retention().set("hidden", limits).unwrap();
        store.expire(false, &mut || Ok(())).unwrap();
        let (writer, request) = (store.writer("survey the log").unwrap(), ReclaimRequest::default());
        let control = Arc::new(JobControl::default());
        let mut meter = TaskMeter::start(&writer.engine.files, &control).unwrap();
        let mut rules = RecordRules::begin(&writer.engine, &request).unwrap();
        let found = writer.reclaim.survey(&mut rules, &mut meter).unwrap();
        assert!(found.segments.len() > 3);
        for segment in &found.segments {
            assert!(segment.estimates.iter().all(|(topic, _)| **topic == *"hidden"), "{segment:?}");
            assert_eq!(segment.estimated_of("hidden"), segment.estimated_bytes());
            assert_eq!(segment.estimated_of("live-0"), 0);
        }
        assert_eq!(found.totals.len(), 21);
        let [row] = found.topics().try_into().unwrap();
        let estimated: u64 = found.segments.iter().map(SurveyedSegment::estimated_bytes).sum();
        assert_eq!((row.topic.as_str(), row.estimated_bytes), ("hidden", estimated));
        assert!(estimated > 0);
    }
}
