//! The files of one broker in a tiered store, and their places in the joined log.
//!
//! Only records with a unit have a place: RocketMQ commits the log first, then the units, and ignores the rest.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{BLANK_HEADER_BYTES, offset_file_name, parse_tiered_cluster_folder};
use mqstore_io::Vfs;

use super::fault::TieredFault;
use super::layout;
use super::queue::{LogPart, TieredQueue};
use super::units::UNIT_BYTES;
use crate::error::{IoContext, StoreError};
use crate::notes::Notes;

/// The joined segments have a multiple of this length.
const ALIGNMENT: u64 = 64 << 10;

/// Minimum and maximum number of units in a joined queue file; the maximum is that of RocketMQ. A reader reads a queue
/// file to its end, so queues with few units get short files.
const LEAST_FILE_UNITS: i64 = 1024;
const MOST_FILE_UNITS: i64 = 300_000;

/// Why such a store cannot be written.
const ONLY_FOR_READING: &str = "it is a tiered store of RocketMQ, which mqstore reads and never writes: open it with mode \
                                \"r\", or make a store that you can write: mqstore export DIR OUT --to store";

/// The files of one broker in a tiered store, as of the open.
#[derive(Debug)]
pub struct TieredStore {
    /// The file system with the files of RocketMQ.
    pub(super) vfs: Arc<dyn Vfs>,
    pub(super) folder: PathBuf,
    pub(super) queues: Vec<TieredQueue>,
    /// The parts of the joined log in their order: numbers of the queue and of its part.
    order: Vec<(usize, usize)>,
    pub(super) segment_bytes: u64,
    /// Number of units in each joined queue file.
    pub(super) file_units: i64,
    pub(super) places: HashMap<String, Place>,
    faults: Vec<TieredFault>,
    notes: Vec<String>,
}

/// A part of a joined file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// A part of the log of a queue.
    Log { queue: usize, part: usize },
    /// Units of a queue, from this one on.
    Units { queue: usize, first: i64 },
}

impl TieredStore {
    /// Returns the folder of the broker in the tiered store at `root`; `None` if there is none.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if there are several brokers.
    pub(in crate::store_files) fn find(vfs: &dyn Vfs, root: &Path) -> Result<Option<PathBuf>, StoreError> {
        let mut found = layout::brokers(vfs, root);
        match found.as_slice() {
            [] | [_] => Ok(found.pop()),
            [first, second, ..] => Err(StoreError::Unsupported {
                path: root.to_path_buf(),
                reason: format!(
                    "it is the tiered store of several brokers; name the folder of one of them, such as {} or {}",
                    first.display(),
                    second.display()
                ),
            }),
        }
    }

    /// The error of what needs a store that can be written.
    pub fn refusal(root: &Path) -> StoreError {
        StoreError::Unsupported { path: root.to_path_buf(), reason: ONLY_FOR_READING.to_owned() }
    }

    /// Lists the files of the broker in `folder`.
    pub(super) fn load(
        shared: &Arc<dyn Vfs>,
        folder: PathBuf,
        user_notes: &Arc<Notes>,
    ) -> Result<Self, StoreError> {
        let vfs = &**shared;
        let (mut queues, mut faults, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for found in layout::queues(vfs, &folder)? {
            let queue = TieredQueue::load(vfs, found, &mut faults, user_notes)?;
            notes.extend(queue.note());
            if queue.bounds().is_some() {
                queues.push(queue);
            }
        }
        let numbered = queues.iter().enumerate();
        let mut order: Vec<(usize, usize)> = numbered
            .flat_map(|(number, queue)| (0..queue.parts.len()).map(move |part| (number, part)))
            .collect();
        // A stable sort keeps the parts of a queue in order.
        order.sort_by_key(|(queue, part)| Self::part_of(&queues, *queue, *part).map(|part| part.stored_ms));
        let longest = queues.iter().flat_map(|queue| &queue.parts).map(|part| part.stop - part.start).max();
        let Some(longest) = longest else {
            let lost = faults.first().map(|fault| format!("; {}: {}", fault.path.display(), fault.detail));
            let reason = format!("it is a tiered store without a message{}", lost.unwrap_or_default());
            return Err(StoreError::NotAStore { path: folder, reason });
        };
        let segment_bytes = (longest + BLANK_HEADER_BYTES as u64).next_multiple_of(ALIGNMENT);
        let mut places = HashMap::new();
        // The joined log begins after every position in the log of a queue, so that a record that was not moved is wrong
        // at each place of it. It begins after 0, so that no blank unit points into it.
        let last_position = queues.iter().filter_map(|queue| Some(queue.log.last()?.end())).max();
        let first_number = last_position.unwrap_or(0) / segment_bytes + 1;
        for (number, (queue, part)) in (first_number..).zip(&order) {
            let at = segment_bytes * number;
            if let Some(part) = queues.get_mut(*queue).and_then(|queue| queue.parts.get_mut(*part)) {
                part.at = at;
            }
            let place = Place::Log { queue: *queue, part: *part };
            places.insert(format!("commitlog/{}", offset_file_name(at)), place);
        }
        let most_units = queues.iter().filter_map(TieredQueue::bounds).map(|(min, max)| max - min).max();
        let file_units = most_units.unwrap_or(0).clamp(LEAST_FILE_UNITS, MOST_FILE_UNITS);
        for (number, queue) in queues.iter().enumerate() {
            let Some((min, max)) = queue.bounds() else { continue };
            for file in min / file_units..=(max - 1) / file_units {
                let first = file * file_units;
                let name = offset_file_name(first.unsigned_abs() * UNIT_BYTES);
                let path = format!("consumequeue/{}/{}/{name}", queue.topic, queue.queue_id);
                places.insert(path, Place::Units { queue: number, first });
            }
        }
        Ok(Self {
            vfs: Arc::clone(shared),
            folder,
            queues,
            order,
            segment_bytes,
            file_units,
            places,
            faults,
            notes,
        })
    }

    fn part_of(queues: &[TieredQueue], queue: usize, part: usize) -> Option<&LogPart> {
        queues.get(queue)?.parts.get(part)
    }

    /// Returns the folder of the broker.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the name of the broker.
    pub fn broker(&self) -> String {
        self.folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Returns the name of the cluster, if the folder above that of the broker has its name.
    pub fn cluster(&self) -> Option<String> {
        let above = self.folder.parent()?.file_name()?.to_str()?;
        parse_tiered_cluster_folder(above).map(str::to_owned)
    }

    /// Returns the number of files of logs and of units, and their bytes.
    pub fn sizes(&self) -> (u64, u64) {
        let files = || self.queues.iter().flat_map(|queue| queue.log.iter().chain(&queue.units));
        (files().count() as u64, files().map(|file| file.len).sum())
    }

    /// Returns the end of the joined log.
    pub fn end(&self) -> u64 {
        let last = self.order.last().and_then(|(queue, part)| Self::part_of(&self.queues, *queue, *part));
        last.map_or(0, |part| part.at + (part.stop - part.start))
    }

    /// Returns the faults that the open found.
    pub fn faults(&self) -> &[TieredFault] {
        &self.faults
    }

    /// Compares all units with the records. Returns the faults.
    ///
    /// # Errors
    /// I/O errors.
    pub fn check_units(&self) -> Result<Vec<TieredFault>, StoreError> {
        let mut faults = Vec::new();
        for queue in &self.queues {
            let check = queue.check_units(&*self.vfs, &mut faults);
            check.at(&self.folder, "checking the units of a tiered store")?;
        }
        Ok(faults)
    }

    /// Returns the notes for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the file and the offset in it that a place in a joined file stands for; `path` is below the root. The
    /// offset in the folder of a queue is that of a unit. `None` for another path.
    pub fn real_place(&self, path: &Path, offset: Option<u64>) -> Option<(PathBuf, Option<u64>)> {
        let path = path.to_str()?;
        let in_folder = || {
            let mut names = path.strip_prefix("consumequeue/")?.split('/');
            let (topic, queue_id) = (names.next()?, names.next()?.parse::<i32>().ok()?);
            let is_it = |queue: &TieredQueue| queue.topic == topic && queue.queue_id == queue_id;
            Some(Place::Units { queue: self.queues.iter().position(is_it)?, first: 0 })
        };
        match self.places.get(path).copied().or_else(|| offset.and_then(|_| in_folder()))? {
            Place::Log { queue, part } => {
                let part = Self::part_of(&self.queues, queue, part)?;
                Some((part.path.clone(), offset.map(|offset| part.start - part.base + offset)))
            }
            Place::Units { queue, first } => {
                let queue = self.queues.get(queue)?;
                let at = first.unsigned_abs() * UNIT_BYTES + offset.unwrap_or(0);
                let file = queue.units.iter().rev().find(|file| file.base <= at).or(queue.units.first())?;
                Some((file.path.clone(), offset.map(|_| at.saturating_sub(file.base))))
            }
        }
    }
}
