//! A compaction whose steps run in other processes.
//!
//! Owns [`DistributedJob`], the driver's side of such a job, and the encoding of the steps and answers between the
//! driver and its workers. Steps and answers are opaque bytes for the transport:
//!
//! ```text
//! DistributedJob::begin   plans and locks the job               driver
//!   start, next           answers -> the steps of the next round
//! EncodedStep::run        a step -> its answer                  worker
//!   publish, rehearse     checks all results, swaps folders     driver
//! ```
//!
//! Across a crash of the driver: the job's lock ends with its process, and another driver may begin a job with the same
//! name; see `job`. Workers may run a step any number of times: each attempt has its own folder, and the job takes one
//! answer for each step.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::job::control::JobControl;
use super::job::documents::{CompactionPlan, CompactionReport, TaskResult, WorkerInfo};
use super::job::job_folder::Job;
use super::job::job_record::job_dir;
use super::job::options::CompactionOptions;
use super::job::plan::{PlannedJob, plan};
use super::job::publish::{publish, rehearse};
use super::job::store_lock::StoreLockHeld;
use super::ranges::{CompactionStep, NextSteps, Strategy, expected_bytes, next, run_step, split};
use crate::json::{Document, malformed};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// A step for a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedStep {
    /// The part of [`DistributedJob::total_bytes`] that the step stands for, in bytes.
    pub weight: u64,
    /// The step in the form for [`EncodedStep::decode`].
    pub bytes: Vec<u8>,
}

/// A step that a worker received.
#[derive(Debug, Serialize, Deserialize)]
pub struct EncodedStep {
    /// Estimated bytes of the records that the step reads.
    reads_bytes: u64,
    step: CompactionStep,
}

impl Document for EncodedStep {
    const WHAT: &'static str = "compaction step";

    fn validate(&self) -> Result<(), StoreError> {
        self.step.validate()
    }
}

impl EncodedStep {
    /// Decodes a step of [`DistributedJob`].
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] with the missing or wrong field.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        Self::from_json(bytes)
    }

    /// The store's root.
    pub fn root(&self) -> &Path {
        &self.step.task().root
    }

    /// Estimated bytes of the records that the step reads.
    pub fn reads_bytes(&self) -> u64 {
        self.reads_bytes
    }

    /// Runs the step in the folder `staging`, which must be in the job's folder and must not exist yet; returns the
    /// answer for [`DistributedJob::next`].
    ///
    /// # Errors
    /// The errors of [`super::run_task`].
    pub fn run(
        &self,
        files: &StoreFiles,
        staging: &Path,
        worker: WorkerInfo,
        control: &JobControl,
    ) -> Result<Vec<u8>, StoreError> {
        Ok(run_step(files, &self.step, staging, worker, control)?.to_json()?.into_bytes())
    }
}

/// A queue with an open round of steps.
#[derive(Debug)]
struct QueueRound {
    steps: Vec<CompactionStep>,
    /// Estimated bytes of the queue's records.
    bytes: u64,
}

/// The driver's side of a job whose steps run in other processes.
#[derive(Debug)]
pub struct DistributedJob {
    files: StoreFiles,
    plan: CompactionPlan,
    /// The locked job, until it is published or abandoned.
    job: Option<Job>,
    /// The queues of the current round.
    rounds: Vec<QueueRound>,
    results: Vec<TaskResult>,
    total_bytes: u64,
}

impl DistributedJob {
    /// Plans the compaction of `topics` (`None`: all compaction topics) and starts the job.
    ///
    /// # Errors
    /// The errors of [`crate::plan()`].
    pub fn begin(
        files: StoreFiles,
        topics: Option<&[String]>,
        options: &CompactionOptions,
    ) -> Result<Self, StoreError> {
        let PlannedJob { plan, job } = plan(&files, &StoreLockHeld::take(&files)?, topics, options)?;
        Ok(Self { files, plan, job, rounds: Vec::new(), results: Vec::new(), total_bytes: 0 })
    }

    /// The job's id.
    pub fn id(&self) -> &str {
        &self.plan.job_id
    }

    /// The job's folder, in which each attempt of a step creates its own.
    pub fn dir(&self) -> PathBuf {
        job_dir(&self.files, self.id())
    }

    /// Estimated bytes that the steps of all rounds read; known after [`DistributedJob::start`].
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the steps of the first round, for about `parts` workers; none if the job is already published.
    ///
    /// # Errors
    /// I/O errors.
    pub fn start(&mut self, strategy: Strategy, parts: u32) -> Result<Vec<WeightedStep>, StoreError> {
        self.results.clear();
        self.rounds.clear();
        for task in &self.plan.tasks {
            let steps = split(&self.files, task, strategy, parts)?;
            self.rounds.push(QueueRound { steps, bytes: expected_bytes(&self.files, task)? });
        }
        let bytes = self.rounds.iter().map(|round| round.bytes.saturating_mul(2));
        self.total_bytes = bytes.fold(0, u64::saturating_add);
        self.steps()
    }

    /// Takes the answers of a round in the order of its steps; returns the steps of the next round, none after the
    /// last.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] if the answers do not belong to the steps, and I/O errors.
    pub fn next(&mut self, answers: &[impl AsRef<[u8]>]) -> Result<Vec<WeightedStep>, StoreError> {
        let expected: usize = self.rounds.iter().map(|round| round.steps.len()).sum();
        if answers.len() != expected {
            let reason = format!("{} answers for {expected} steps", answers.len());
            return Err(malformed("answers", &reason));
        }
        let mut answers = answers.iter();
        let mut following = Vec::new();
        for round in std::mem::take(&mut self.rounds) {
            let own: Vec<TaskResult> = answers
                .by_ref()
                .take(round.steps.len())
                .map(TaskResult::from_json)
                .collect::<Result<_, _>>()?;
            match next(&self.files, &round.steps, &own)? {
                NextSteps::Steps(steps) => following.push(QueueRound { steps, ..round }),
                NextSteps::Done(result) => self.results.push(*result),
            }
        }
        self.rounds = following;
        self.steps()
    }

    /// Publishes the results of all queues and ends the job, also after an error.
    ///
    /// # Errors
    /// The errors of [`crate::publish()`].
    pub fn publish(&mut self) -> Result<CompactionReport, StoreError> {
        let job = self.take()?;
        let held = StoreLockHeld::take(&self.files)?;
        publish(&self.files, &held, job, &self.plan, &self.results)?.sweep(&self.files, &held)
    }

    /// Runs all checks of [`DistributedJob::publish`] and returns its report, but publishes nothing. Then it ends the
    /// job.
    ///
    /// # Errors
    /// The errors of [`super::rehearse`].
    pub fn rehearse(&mut self) -> Result<CompactionReport, StoreError> {
        let job = self.take()?;
        rehearse(&self.files, job, &self.plan, &self.results)
    }

    /// Ends a job that will not be published; does nothing if the job has ended.
    ///
    /// # Errors
    /// I/O errors.
    pub fn abandon(&mut self) -> Result<(), StoreError> {
        self.job.take().map_or(Ok(()), |job| job.abandon(&self.files))
    }

    /// Takes the locked job; `None` if it was published before this driver planned it.
    fn take(&mut self) -> Result<Option<Job>, StoreError> {
        let job = self.job.take();
        if job.is_some() || self.plan.published.is_some() {
            return Ok(job);
        }
        Err(StoreError::Busy { reason: format!("job {} has ended; begin another one", self.id()) })
    }

    fn steps(&self) -> Result<Vec<WeightedStep>, StoreError> {
        let mut steps = Vec::new();
        for round in &self.rounds {
            let count = round.steps.len() as u64;
            for step in &round.steps {
                let (weight, reads_bytes) = weigh(step, round.bytes, count);
                let encoded = EncodedStep { reads_bytes, step: step.clone() };
                steps.push(WeightedStep { weight, bytes: encoded.to_json()?.into_bytes() });
            }
        }
        Ok(steps)
    }
}

/// Returns the weight of one of `count` steps of a queue with this number of bytes, and the bytes that the step reads.
fn weigh(step: &CompactionStep, queue_bytes: u64, count: u64) -> (u64, u64) {
    let count = count.max(1);
    // A compaction reads each record twice; the rounds of a distributed queue share this work.
    let percent = match step {
        CompactionStep::Whole(_) => 100,
        CompactionStep::Scan(_) | CompactionStep::Copy(_) => 45,
        CompactionStep::Decide(_) => 10,
    };
    let both = u128::from(queue_bytes) * 2;
    let weight = u64::try_from(both * percent / 100 / u128::from(count)).unwrap_or(u64::MAX);
    let reads = if matches!(step, CompactionStep::Whole(_)) { weight } else { queue_bytes / count };
    (weight, reads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Sent, TestStore, compacted, small};

    const TOPIC: &str = "ctopic";

    fn store() -> TestStore {
        let mut store = TestStore::new(&[TOPIC]);
        for queue in 0..2 {
            for at in 0..60 {
                let key = format!("k{}", at % 20);
                store.append(TOPIC, queue, Sent::new(&key, "value"));
            }
        }
        store
    }

    fn begin(store: &TestStore, id: &str) -> DistributedJob {
        let options = CompactionOptions { job_id: Some(id.to_owned()), ..small() };
        DistributedJob::begin(store.files.clone(), None, &options).unwrap()
    }

    /// Runs each step of a round twice and returns the answers.
    fn answers(
        store: &TestStore,
        job: &DistributedJob,
        steps: &[WeightedStep],
        round: usize,
    ) -> Vec<Vec<u8>> {
        let run = |(number, step): (usize, &WeightedStep)| {
            let step = EncodedStep::decode(&step.bytes).unwrap();
            assert_eq!(step.root(), store.files.root);
            let attempt = |time: usize| {
                let staging = job.dir().join(format!("task-{round}-{number}-{time}"));
                step.run(&store.files, &staging, WorkerInfo::default(), &JobControl::default()).unwrap()
            };
            let answer = attempt(0);
            attempt(1);
            answer
        };
        steps.iter().enumerate().map(run).collect()
    }

    #[test]
    fn a_job_is_driven_by_opaque_steps() {
        for (strategy, rounds) in [(Strategy::Partition, 1), (Strategy::Ranged, 3)] {
            let store = store();
            let mut job = begin(&store, "j");
            let (mut steps, mut round, mut weights) = (job.start(strategy, 3).unwrap(), 0, 0);
            while !steps.is_empty() {
                weights += steps.iter().map(|step| step.weight).sum::<u64>();
                let answers = answers(&store, &job, &steps, round);
                steps = job.next(&answers).unwrap();
                round += 1;
            }
            assert_eq!(round, rounds);
            assert!(weights > job.total_bytes() * 9 / 10 && weights <= job.total_bytes());
            let report = job.publish().unwrap();
            assert_eq!((report.queues.len(), report.skipped.len()), (2, 0));
            for queue in 0..2 {
                assert_eq!(compacted(&store.files, TOPIC, queue), store.dictionary(TOPIC, queue));
            }
            // The job has ended, and another one with its name has nothing to do.
            assert!(matches!(job.publish(), Err(StoreError::Busy { .. })));
            job.abandon().unwrap();
            let mut again = begin(&store, "j");
            assert!(again.start(strategy, 3).unwrap().is_empty());
            assert_eq!(again.publish().unwrap(), report);
        }
    }

    #[test]
    fn answers_that_cannot_be_are_refused() {
        let store = store();
        let mut job = begin(&store, "j");
        let steps = job.start(Strategy::Partition, 2).unwrap();
        let mut answers = answers(&store, &job, &steps, 0);
        assert!(matches!(job.next(&answers[..1]), Err(StoreError::InvalidOption { option: "answers", .. })));
        answers.swap(0, 1);
        assert!(matches!(job.next(&answers), Err(StoreError::InvalidOption { option: "answers", .. })));
        job.start(Strategy::Partition, 2).unwrap();
        assert!(matches!(job.next(&[b"{}", b"{}"]), Err(StoreError::InvalidOption { .. })));
        let dir = job.dir();
        job.abandon().unwrap();
        assert!(store.files.vfs.stat(&dir).is_err());
        for step in [&b""[..], b"{", b"[]", &[0xff], br#"{"version":2}"#] {
            assert!(matches!(EncodedStep::decode(step), Err(StoreError::InvalidOption { .. })));
        }
    }

    #[test]
    fn a_driver_that_is_gone_leaves_its_name_to_another_one() {
        let store = store();
        let mut job = begin(&store, "j");
        let steps = job.start(Strategy::Partition, 2).unwrap();
        let options = CompactionOptions { job_id: Some("j".to_owned()), ..small() };
        let rival = DistributedJob::begin(store.files.clone(), None, &options);
        assert!(matches!(rival, Err(StoreError::Busy { .. })));
        drop(job);
        let mut job = begin(&store, "j");
        // A late step of the first driver's job finds another token.
        let late = EncodedStep::decode(&steps[0].bytes).unwrap();
        let staging = job.dir().join("task-0-0-late");
        assert!(late.run(&store.files, &staging, WorkerInfo::default(), &JobControl::default()).is_err());
        let steps = job.start(Strategy::Partition, 2).unwrap();
        let answers = answers(&store, &job, &steps, 0);
        assert!(job.next(&answers).unwrap().is_empty());
        assert_eq!(job.rehearse().unwrap().queues.len(), 2);
    }
}
