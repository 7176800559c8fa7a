//! A store that several processes of a machine share: the handle of one of them.
//!
//! Only the kernel's lock decides who is the owner. A process that gets it opens the store and serves the others; the
//! others are clients. When the owner ends, one of them takes the lock, recovers the store and publishes its socket; the
//! others connect to it and send again what has no answer. No time limit ever declares an owner dead.

mod call;
mod consumer;
mod handle;
mod keyed;
mod lease;
#[cfg(test)]
mod model_tests;
mod queue;
mod responses;
#[cfg(test)]
mod tests;
mod transaction;
mod verbs;
mod views;

use std::path::PathBuf;
use std::time::Duration;

use mqstore::error::StoreError;
use mqstore::format::UniqueKeyGenerator;
use mqstore::inspect::{StoreFiles, is_written_elsewhere, writer_pid};
use mqstore::io::sync::{Arc, AtomicBool, AtomicU64, Condvar, JoinHandle, Mutex, Ordering, spawn};
use mqstore::io::{Clock, Vfs};
use mqstore::options::{OpenMode, StoreOptions};
use mqstore::store::RecoveryProgress;
use mqstore::{Durability, Error, Store, StoreBuilder};

use crate::client::connection::{Connection, LONGEST_SLEEP};
use crate::deadline::{Deadline, clock};
use crate::master::Master;
use crate::service::Service;
use crate::socket::{address, listener::Listener};
use crate::wire::greeting::{Hello, Welcome};
use views::View;

pub use call::{Call, Waiting};
pub use consumer::Consumer;
pub use lease::{Lease, LeasedMessage};
pub use queue::WorkQueue;
pub use transaction::{CheckedGroups, Transaction};
pub use verbs::{Later, Verbs};

/// First and longest pause between two looks for an owner.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Time after which a wait for an owner is noted.
const NOTED_AFTER: Duration = Duration::from_secs(1);
/// Interval in which the thread looks at its connection or its store.
const LOOK: Duration = Duration::from_millis(100);
/// Pause after a takeover that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What the program around a shared store decides.
pub trait Program: Send + Sync {
    /// Returns the options with which this process opens the store as its owner, and their text for others. `last` is
    /// the text of the last owner, if there was one.
    ///
    /// # Errors
    /// `InvalidOption` for options that cannot be.
    fn options(&self, last: Option<&str>) -> Result<(StoreOptions, String), StoreError>;

    /// Compares the options that this process was given with those of the owner.
    ///
    /// # Errors
    /// `InvalidOption` that names both values.
    fn agree(&self, owner: &str) -> Result<(), StoreError>;

    /// Gets each store that the handle opens, before it is used.
    fn opened(&self, store: &Store);

    /// Gets a line for the log.
    fn note(&self, line: &str);

    /// Asked from time to time by a call that waits for its answer.
    ///
    /// # Errors
    /// An error ends the call.
    fn interrupted(&self) -> Result<(), StoreError>;
}

/// Whether a process serves the store at `root` now.
pub fn is_shared(root: &std::path::Path) -> bool {
    address::connect(root).is_ok()
}

/// How to open a shared store.
pub struct Setup {
    /// The root of the store.
    pub root: PathBuf,
    /// Whether this process may become the owner.
    pub may_own: bool,
    /// The longest wait for an owner; `None` has no limit.
    pub timeout: Option<Duration>,
    /// The program.
    pub program: Arc<dyn Program>,
    /// The file system of the store.
    pub vfs: Arc<dyn Vfs>,
    /// The clock of the store.
    pub clock: Arc<dyn Clock>,
}

/// The open store of an owner, and its service.
pub(crate) struct Owner {
    store: Store,
    service: Arc<Service>,
    listener: Mutex<Option<Listener>>,
    /// Serves the replicas, until the store closes.
    _master: Option<Arc<Master>>,
}

/// What this process is now.
enum Role {
    /// Looks for an owner, or opens the store.
    None,
    Owner(Arc<Owner>),
    Client(Arc<Connection>),
    Closed,
}

/// Where a verb runs.
pub(crate) enum Place {
    /// In this process.
    Here(Arc<Owner>),
    /// In the owner at the other end.
    There(Arc<Connection>),
}

pub(crate) struct Inner {
    setup: Setup,
    files: StoreFiles,
    views: View,
    role: Mutex<(Role, u64)>,
    changed: Condvar,
    closed: AtomicBool,
    hello: Hello,
    /// Number of the connections so far.
    connections: AtomicU64,
    pub(crate) keys: UniqueKeyGenerator,
    next_handle: AtomicU64,
    /// Why the last takeover failed.
    failure: Mutex<Option<String>>,
    /// The options of the last owner.
    options: Mutex<String>,
    watcher: Mutex<Option<JoinHandle<()>>>,
}

/// A store that this process shares with others. Cheap to clone.
#[derive(Clone)]
pub struct SharedStore(pub(crate) Arc<Inner>);

/// Gets the progress of a recovery; its error ends the open.
pub type Watcher<'a> = &'a mut dyn FnMut(RecoveryProgress) -> Result<(), StoreError>;

impl SharedStore {
    /// Opens a shared store: as its owner, or as a client of the owner.
    ///
    /// # Errors
    /// Those of an open of the store; `Locked` if there is no owner that shares within the timeout; `InvalidOption` if
    /// the owner has other options; `Refused` if a process on another machine has the store open.
    pub fn open(setup: Setup, watcher: Watcher<'_>) -> Result<Self, Error> {
        let files = StoreFiles::new(Arc::clone(&setup.vfs), Arc::clone(&setup.clock), &setup.root);
        let environment = files.vfs.environment();
        let client =
            u128::from(environment.random_seed) << 64 | u128::from(files.vfs.environment().random_seed);
        let hello = Hello {
            client,
            connection: 0,
            pid: environment.pid,
            library: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let salt = environment.random_seed;
        let keys =
            UniqueKeyGenerator::new(StoreOptions::default().store_host.ip, environment.pid, salt as u32)
                .starting_at((salt >> 32) as u16)
                .with_utc_offset_ms(files.clock.utc_offset_ms(files.clock.now_ms()));
        let until = Deadline::after(setup.timeout);
        let connections = AtomicU64::new(0);
        let seeker = Seeker { setup: &setup, files: &files, hello: &hello, connections: &connections };
        let (role, store, options) = seeker.seek(None, until, &|| false, watcher)?;
        let store = match store {
            Some(store) => store,
            None => seeker.reader(&options)?,
        };
        setup.program.opened(&store);
        let inner = Arc::new(Inner {
            setup,
            files,
            views: View::new(store),
            role: Mutex::new((role, 1)),
            changed: Condvar::new(),
            closed: AtomicBool::new(false),
            hello,
            connections,
            keys,
            next_handle: AtomicU64::new(1),
            failure: Mutex::default(),
            options: Mutex::new(options),
            watcher: Mutex::default(),
        });
        let own = Arc::clone(&inner);
        let thread = spawn("mqstore-watch", move || own.watch())
            .map_err(|source| StoreError::io(&inner.setup.root, "starting a thread", source))?;
        *inner.watcher.lock() = Some(thread);
        Ok(Self(inner))
    }

    /// Returns the open store for reads: the store itself in the owner, a reader beside it in a client. It stays valid
    /// when the role changes.
    pub fn store(&self) -> &Store {
        &self.0.views.newest().store
    }

    /// Like [`Self::store`], for reads that continue in the archive.
    pub fn reads(&self) -> &Store {
        &self.0.views.newest().reads
    }

    /// Whether this process is the owner.
    pub fn is_owner(&self) -> bool {
        matches!(self.0.role.lock().0, Role::Owner(_))
    }

    /// Whether verbs run in this process now.
    pub fn is_here(&self) -> bool {
        self.0.here().is_some()
    }

    /// Returns the options of the last owner, as their text.
    pub fn options(&self) -> String {
        self.0.options.lock().clone()
    }

    /// Whether the store was closed.
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// Closes the store of this process. An owner ends its service first; then another process takes over.
    ///
    /// # Errors
    /// Those of the last flush of an owner.
    pub fn close(&self) -> Result<(), StoreError> {
        let inner = &self.0;
        if inner.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let role = inner.set_role(Role::Closed);
        inner.changed.notify_all();
        let closed = match role {
            Role::Owner(owner) => owner.close(),
            Role::Client(connection) => {
                connection.end();
                Ok(())
            }
            Role::None | Role::Closed => Ok(()),
        };
        if let Some(thread) = inner.watcher.lock().take() {
            // A panic in it was reported.
            let _ = thread.join();
        }
        // The thread may have taken over meanwhile.
        let late = inner.set_role(Role::Closed);
        if let Role::Owner(owner) = late {
            owner.close()?;
        }
        for store in inner.views.all() {
            store.close()?;
        }
        closed
    }

    /// Cuts the connection of a client.
    #[cfg(test)]
    fn cut(&self) {
        if let Role::Client(connection) = &self.0.role.lock().0 {
            connection.end();
        }
    }

    /// In a child, directly after a fork: closes its copies of the lock. The handle must be leaked then, see
    /// [`close_sockets_in_child`](crate::close_sockets_in_child); the child opens another one.
    pub fn disown_in_child(&self) {
        self.0.closed.store(true, Ordering::Release);
        for store in self.0.views.all() {
            store.disown_in_child();
        }
    }
}

impl std::fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedStore").field("root", &self.0.setup.root).finish_non_exhaustive()
    }
}

impl Owner {
    /// Ends the service, then the store: answers what runs, removes the socket, releases the lock.
    fn close(&self) -> Result<(), StoreError> {
        drop(self.listener.lock().take());
        self.service.end();
        self.store.close()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }
}

/// Looks for an owner, or becomes it.
struct Seeker<'a> {
    setup: &'a Setup,
    files: &'a StoreFiles,
    hello: &'a Hello,
    connections: &'a AtomicU64,
}

/// A role, the store of an owner, and the text of the options.
type Found = (Role, Option<Store>, String);

impl Seeker<'_> {
    /// Returns once there is an owner. `last` has the options of the last one.
    fn seek(
        &self,
        last: Option<&str>,
        until: Deadline,
        is_over: &dyn Fn() -> bool,
        watcher: Watcher<'_>,
    ) -> Result<Found, Error> {
        let (noted_at, mut noted, mut pause) = (Deadline::after(Some(NOTED_AFTER)), false, FIRST_PAUSE);
        loop {
            if let Some(connection) = self.connect()? {
                let options = connection.welcome.options.clone();
                self.setup.program.agree(&options)?;
                return Ok((Role::Client(Arc::new(connection)), None, options));
            }
            if self.setup.may_own {
                match self.own(last, watcher) {
                    Err(Error::Store(StoreError::Locked { .. })) => {}
                    found => return found,
                }
            }
            if is_over() {
                return Err(StoreError::Closed { path: self.setup.root.clone() }.into());
            }
            let pid = || writer_pid(self.files);
            if self.is_broker() || until.is_over() {
                return Err(StoreError::Locked { path: self.files.lock(), pid: pid() }.into());
            }
            if is_written_elsewhere(self.files) {
                let reason = format!(
                    "{}: a process on another machine has the store open, and a store is shared by processes of one \
                     machine: close it there, or open it here with mode \"r\" after that",
                    self.setup.root.display()
                );
                return Err(StoreError::Refused { reason }.into());
            }
            if !noted && noted_at.is_over() {
                noted = true;
                self.setup.program.note(&self.waits_for(pid()));
            }
            clock().sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    fn waits_for(&self, pid: Option<i32>) -> String {
        let root = self.setup.root.display();
        match pid {
            Some(pid) => {
                format!("{root}: waiting for process {pid}, which has the store open and does not answer")
            }
            // Neither the lock, nor the live page, nor the open files of this machine's processes name it: it opens or
            // repairs the store in another container.
            None => format!("{root}: waiting for a process that has the store open and is not visible here"),
        }
    }

    /// Whether another program than mqstore holds the lock: it shares nothing.
    fn is_broker(&self) -> bool {
        let holder = self.files.vfs.lock_holder(&self.files.lock());
        holder.ok().flatten().is_some_and(|holder| !holder.may_be_ours)
    }

    /// Connects to an owner that shares; `None` if there is none, or it does not answer yet.
    fn connect(&self) -> Result<Option<Connection>, Error> {
        let stream = match address::connect(&self.setup.root) {
            Ok(stream) => stream,
            Err(error) if address::is_absent(&error) => return Ok(None),
            Err(error) => {
                return Err(StoreError::io(&self.setup.root, "connecting to the owner", error).into());
            }
        };
        let connection = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        match Connection::greet(stream, &Hello { connection, ..self.hello.clone() }) {
            Ok(connection) => Ok(Some(connection)),
            // It ended, or is stopped. Only the lock says which.
            Err(Error::Store(StoreError::Io { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the store as its owner, and serves it.
    fn own(&self, last: Option<&str>, watcher: Watcher<'_>) -> Result<Found, Error> {
        let (options, text) = self.setup.program.options(last)?;
        if options.durability == Durability::Pooled {
            let reason =
                "a kill of the owner loses pooled records that other processes appended: use async or sync";
            return Err(StoreError::InvalidOption { option: "durability", reason: reason.into() }.into());
        }
        let store = self.builder().mode(OpenMode::Create).options(options).watcher(watcher).open()?;
        let owner = self.serve(&store, &text).inspect_err(|_| {
            // The error of the service matters more.
            let _ = store.close();
        })?;
        Ok((Role::Owner(Arc::new(owner)), Some(store), text))
    }

    fn serve(&self, store: &Store, options: &str) -> Result<Owner, StoreError> {
        let failed =
            |source| StoreError::io(&self.setup.root.join("mqstore/socket"), "sharing the store", source);
        let service = Service::start(store.clone()).map_err(failed)?;
        let welcome = Welcome {
            pid: self.hello.pid,
            library: self.hello.library.clone(),
            generation: self.files.vfs.environment().random_seed,
            options: options.to_owned(),
        };
        let (socket, published) = address::publish(&self.setup.root).map_err(failed)?;
        let listener = Listener::start(socket, published, Arc::clone(&service), welcome).map_err(failed)?;
        let master = Master::start(store)?;
        if let Some(master) = &master {
            let weak = Arc::downgrade(master);
            let status = move || weak.upgrade().map(|master| master.status()).unwrap_or_default();
            service.core().set_replicas(Box::new(status));
        }
        Ok(Owner { store: store.clone(), service, listener: Mutex::new(Some(listener)), _master: master })
    }

    /// Opens the store for reading, beside its owner.
    fn reader(&self, options: &str) -> Result<Store, Error> {
        let (options, _) = self.setup.program.options(Some(options))?;
        Ok(self.builder().mode(OpenMode::Read).options(options).open_undelivered()?)
    }

    fn builder<'a>(&self) -> StoreBuilder<'a> {
        let Setup { root, vfs, clock, .. } = self.setup;
        Store::builder(root).vfs(Arc::clone(vfs)).clock(Arc::clone(clock))
    }
}

impl Inner {
    fn set_role(&self, role: Role) -> Role {
        let mut now = self.role.lock();
        now.1 += 1;
        let before = std::mem::replace(&mut now.0, role);
        drop(now);
        self.changed.notify_all();
        before
    }

    pub(crate) fn store(&self) -> &Store {
        &self.views.newest().store
    }

    /// Returns the store if this process is the owner.
    pub(crate) fn here(&self) -> Option<&Store> {
        self.views.writer()
    }

    /// Returns a number for a new handle.
    pub(crate) fn handle_number(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns where verbs run, and the number of the role; waits for an owner for at most `longest`.
    pub(crate) fn place(&self, longest: Duration) -> Result<Option<(Place, u64)>, Error> {
        let until = Deadline::after(Some(longest));
        let mut role = self.role.lock();
        loop {
            match &role.0 {
                Role::Owner(owner) if !owner.store.is_closed() => {
                    return Ok(Some((Place::Here(Arc::clone(owner)), role.1)));
                }
                Role::Client(connection) if !connection.is_lost() => {
                    return Ok(Some((Place::There(Arc::clone(connection)), role.1)));
                }
                Role::Closed => return Err(StoreError::Closed { path: self.setup.root.clone() }.into()),
                Role::None | Role::Owner(_) | Role::Client(_) => {}
            }
            let left = until.left(LONGEST_SLEEP);
            if left.is_zero() {
                return Ok(None);
            }
            let _ = self.changed.wait_for(&mut role, left);
        }
    }

    /// The thread of the handle: notices the end of an owner, and takes over.
    fn watch(&self) {
        let mut next_look = Deadline::after(Some(NOTED_AFTER));
        while !self.closed.load(Ordering::Acquire) {
            let client = match &self.role.lock().0 {
                Role::Client(connection) => Some(Arc::clone(connection)),
                _ => None,
            };
            match client {
                Some(connection) => {
                    connection.watch(NOTED_AFTER);
                    if next_look.is_over() {
                        next_look = Deadline::after(Some(NOTED_AFTER));
                        self.look_at_lock(&connection);
                    }
                    if connection.is_lost() {
                        self.take_over();
                    }
                }
                None => self.watch_own(),
            }
        }
    }

    /// Ends the connection to an owner that has released the lock: its end can be hidden by a process that has a copy
    /// of its socket.
    fn look_at_lock(&self, connection: &Connection) {
        if matches!(self.files.vfs.lock_holder(&self.files.lock()), Ok(None)) {
            connection.end();
        }
    }

    /// As the owner: gives the store up after a failed sync, so that the next open recovers it.
    fn watch_own(&self) {
        let owner = {
            let mut role = self.role.lock();
            let _ = self.changed.wait_for(&mut role, LOOK);
            match &role.0 {
                Role::Owner(owner) => Arc::clone(owner),
                _ => return,
            }
        };
        if let Err(error @ StoreError::Poisoned { .. }) = owner.store.check() {
            self.setup
                .program
                .note(&format!("{error}; this process gives the store up, and another open recovers it"));
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            // Its error is that of the failed sync, which callers have got.
            let _ = owner.close();
            self.take_over();
        }
    }

    /// Looks for the next owner, or becomes it.
    fn take_over(&self) {
        drop(self.set_role_unless_closed(Role::None));
        let last = self.options.lock().clone();
        let seeker = Seeker {
            setup: &self.setup,
            files: &self.files,
            hello: &self.hello,
            connections: &self.connections,
        };
        while !self.closed.load(Ordering::Acquire) {
            let is_over = || self.closed.load(Ordering::Acquire);
            let found = seeker.seek(Some(&last), Deadline::after(None), &is_over, &mut |_| Ok(()));
            let installed = found.and_then(|found| self.install(&seeker, found));
            match installed {
                Ok(()) => {
                    *self.failure.lock() = None;
                    return;
                }
                Err(error) => {
                    let text = error.to_string();
                    if !is_over() && self.failure.lock().as_ref() != Some(&text) {
                        self.setup.program.note(&format!("cannot take the store over: {text}; trying again"));
                    }
                    *self.failure.lock() = Some(text);
                    let mut role = self.role.lock();
                    let _ = self.changed.wait_for(&mut role, AFTER_FAILURE);
                }
            }
        }
    }

    fn install(&self, seeker: &Seeker<'_>, (role, store, options): Found) -> Result<(), Error> {
        match store {
            Some(store) => {
                self.setup.program.opened(&store);
                self.views.push(store);
            }
            // The reader of before goes on with the next writer; a process that was the owner needs one.
            None if self.store().is_closed() => {
                let reader = seeker.reader(&options)?;
                self.setup.program.opened(&reader);
                self.views.push(reader);
            }
            None => {}
        }
        *self.options.lock() = options;
        if let Some(Role::Owner(owner)) = self.set_role_unless_closed(role) {
            owner.close()?;
        }
        Ok(())
    }

    /// Sets the role; gives it back if the handle was closed meanwhile.
    fn set_role_unless_closed(&self, role: Role) -> Option<Role> {
        let mut now = self.role.lock();
        if matches!(now.0, Role::Closed) {
            return Some(role);
        }
        now.1 += 1;
        now.0 = role;
        drop(now);
        self.changed.notify_all();
        None
    }
}
