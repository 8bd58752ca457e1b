//! The device: the export's description, and its use by one thread before the volume is open.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use blockyard_protocol::nbd::client::{Event, Remote, Request};
use blockyard_protocol::nbd::{Command, Extent};

use super::device;
use super::dial::{self, Opened};
use super::unflushed::{Success, Unflushed};
use super::uri::{Settings, Uri};
use crate::Error;
use crate::device_thread::DeviceThread;
use crate::durability::Durability;
use crate::log;

/// Time for which a device that is no path waits for its server. Ours.
const RECONNECT_DELAY: Duration = Duration::from_secs(60);
/// Sector of the engine; limit of a server's minimum block.
const SECTOR_BYTES: u32 = 512;

/// An export of an NBD server.
#[derive(Debug)]
pub(crate) struct NbdDisk {
    uri: Uri,
    /// Name as given.
    name: String,
    settings: Settings,
    /// The disk is opened for writing too.
    writes: bool,
    /// The server's first description; `None` if it could not be reached.
    first: Option<Remote>,
    is_path: AtomicBool,
    /// Used length; a server with less is a different one.
    required_bytes: AtomicU64,
    /// Connection, until a thread takes it over.
    connection: Mutex<Option<Opened>>,
    /// Unflushed writes before that.
    unflushed: Unflushed,
    /// Last reported failure.
    said: Mutex<String>,
    /// Start of the present outage; `None` while a connection is open.
    lost_since: Mutex<Option<SystemTime>>,
}

/// Data of a transfer.
enum Data<'a> {
    None,
    To(&'a mut [u8]),
    From(&'a [u8]),
    Extents(&'a mut Vec<Extent>),
}

impl NbdDisk {
    /// Connects, and opens the export.
    ///
    /// # Errors
    /// The name is no URI, the server cannot be reached, or the export cannot be used.
    pub(crate) fn open(name: &str, writes: bool) -> Result<Self, Error> {
        let disk = Self::named(name, writes)?;
        let opened = disk.dial().map_err(|problem| disk.problem(problem))?;
        let first = opened.remote().clone();
        disk.required_bytes.store(first.size_bytes, Ordering::Relaxed);
        Ok(Self { first: Some(first), connection: Mutex::new(Some(opened)), ..disk })
    }

    /// Like [`NbdDisk::open`], for a path: an unreachable server is no error yet.
    ///
    /// # Errors
    /// The name is no URI.
    pub(crate) fn open_path(name: &str, writes: bool) -> Result<Self, Error> {
        let disk = Self::named(name, writes)?;
        disk.is_path.store(true, Ordering::Relaxed);
        match disk.dial() {
            Ok(opened) => {
                let first = Some(opened.remote().clone());
                Ok(Self { first, connection: Mutex::new(Some(opened)), ..disk })
            }
            Err(why) => {
                disk.say_once(&why);
                disk.set_lost();
                Ok(disk)
            }
        }
    }

    fn named(name: &str, writes: bool) -> Result<Self, Error> {
        let (uri, settings) = Uri::with_settings(name).map_err(Error::Uri)?;
        Ok(Self {
            uri,
            name: name.to_owned(),
            settings,
            writes,
            first: None,
            is_path: AtomicBool::new(false),
            required_bytes: AtomicU64::new(0),
            connection: Mutex::new(None),
            unflushed: Unflushed::default(),
            said: Mutex::default(),
            lost_since: Mutex::default(),
        })
    }

    fn problem(&self, problem: String) -> Error {
        Error::Volume { path: self.name.clone(), problem }
    }

    /// Length; the greatest possible one while it is unknown.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.first.as_ref().map_or(u64::MAX, |first| first.size_bytes)
    }

    pub(crate) fn rotational(&self) -> bool {
        self.first.as_ref().is_some_and(|first| first.rotational)
    }

    /// Whether TRIM is supported; assumed while the server is away.
    pub(crate) fn can_trim(&self) -> bool {
        self.first.as_ref().is_none_or(|first| first.can_trim)
    }

    /// Sets the used length.
    pub(crate) fn require(&self, len_bytes: u64) {
        self.required_bytes.fetch_max(len_bytes, Ordering::Relaxed);
    }

    /// The export and its server.
    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Name as given.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_path(&self) -> bool {
        self.is_path.load(Ordering::Relaxed)
    }

    pub(super) fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    pub(super) fn reconnect_delay(&self) -> Duration {
        self.settings.reconnect_delay.unwrap_or(RECONNECT_DELAY)
    }

    /// Whether a lost server keeps acknowledged, unflushed writes.
    pub(super) fn trusts_unflushed(&self) -> bool {
        self.settings.trusts_unflushed
    }

    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    pub(super) fn connections(&self) -> usize {
        usize::from(self.settings.connections)
    }

    /// Start of the present outage; `None` while a connection is open.
    pub(crate) fn lost_since(&self) -> Option<SystemTime> {
        *self.lost_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No connection is open.
    pub(super) fn set_lost(&self) {
        let mut since = self.lost_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.get_or_insert_with(SystemTime::now);
    }

    /// A connection is open.
    pub(super) fn set_found(&self) {
        *self.lost_since.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Reports to the operator.
    pub(super) fn say(&self, what: &str) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = what.to_owned();
        let fields = [("device", log::Value::Text(&self.name))];
        let event = log::Event::new(log::Kind::Remote).fields(&fields);
        event.say(format_args!("{}: {what}", self.name));
    }

    /// Reports to the operator, unless it repeats the last report.
    pub(super) fn say_once(&self, what: &str) {
        let is_known = *self.said.lock().unwrap_or_else(PoisonError::into_inner) == what;
        if !is_known {
            self.say(what);
        }
    }

    /// Connects, and checks that the export fits its use.
    ///
    /// # Errors
    /// A description of the failure.
    pub(super) fn dial(&self) -> Result<Opened, String> {
        let opened = dial::dial(&self.uri)?;
        let Remote { size_bytes, read_only, block_min_bytes, .. } = *opened.remote();
        let required = self.required_bytes.load(Ordering::Relaxed);
        if size_bytes < required {
            return Err(format!("the export has {size_bytes} bytes, but {required} are used"));
        }
        if read_only && self.writes {
            return Err("the export is read-only; open it with `read_only`".into());
        }
        if block_min_bytes > SECTOR_BYTES {
            return Err(format!(
                "the server wants whole blocks of {block_min_bytes} bytes, and only up to \
                 {SECTOR_BYTES} are supported; start it with a smaller block size"
            ));
        }
        Ok(opened)
    }

    /// Starts the thread of the disk, for the volume with this latch. Paths of one line share the
    /// count of unflushed writes.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub(crate) fn start(
        self: &Arc<Self>,
        number: usize,
        durability: Arc<Durability>,
        unflushed: Arc<Unflushed>,
    ) -> io::Result<DeviceThread> {
        device::start(number, Arc::clone(self), durability, unflushed)
    }

    pub(super) fn take_over(&self) -> Option<Opened> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Unflushed bytes from before the start of the thread.
    pub(super) fn unflushed_bytes(&self) -> u64 {
        self.unflushed.bytes()
    }

    pub(crate) fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let block = u64::from(SECTOR_BYTES);
        let start = offset_bytes / block * block;
        let end = offset_bytes + buf.len() as u64;
        let mut at = start;
        while at < end {
            let max = self.len_max_bytes(Command::Read)?;
            let past = end.next_multiple_of(block).min(self.len_bytes());
            let mut piece = vec![0; (past - at).min(max) as usize];
            let past = at + piece.len() as u64;
            self.execute(&Request::new(Command::Read, at..past), Data::To(&mut piece))?;
            let from = at.max(offset_bytes);
            let to = past.min(end);
            buf[(from - offset_bytes) as usize..(to - offset_bytes) as usize]
                .copy_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
            at = past;
        }
        Ok(())
    }

    pub(crate) fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let block = u64::from(SECTOR_BYTES);
        let start = offset_bytes / block * block;
        let end = (offset_bytes + bytes.len() as u64).next_multiple_of(block).min(self.len_bytes());
        let mut whole = vec![0; (end - start) as usize];
        if whole.len() != bytes.len() {
            self.read_at(start, &mut whole)?;
        }
        whole[(offset_bytes - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        let max = self.len_max_bytes(Command::Write)? as usize;
        for (piece, index) in whole.chunks(max).zip(0..) {
            let at = start + (index * max) as u64;
            let request = Request::new(Command::Write, at..at + piece.len() as u64);
            self.execute(&request, Data::From(piece))?;
        }
        Ok(())
    }

    /// The server's knowledge of a range, from its start on: lengths, and whether they read as
    /// zeroes. May be empty.
    pub(crate) fn runs_at(&self, offset_bytes: u64, len_bytes: u64) -> Vec<(u64, bool)> {
        let mut extents = Vec::new();
        let max_bytes = self.len_max_bytes(Command::BlockStatus).unwrap_or(0);
        let range = offset_bytes..offset_bytes + len_bytes.min(max_bytes);
        let asked = Request::new(Command::BlockStatus, range);
        let _ = self.execute(&asked, Data::Extents(&mut extents));
        extents.into_iter().map(|extent| (extent.len_bytes, extent.zero)).collect()
    }

    /// Flushes: all writes through this value are on stable storage when this returns.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.execute(&Request::FLUSH, Data::None)
    }

    fn len_max_bytes(&self, command: Command) -> io::Result<u64> {
        let first =
            self.first.as_ref().ok_or_else(|| io::Error::other("the server was never reached"))?;
        Ok(first.len_max_bytes(command))
    }

    /// Message about the loss of the server, if it may have lost acknowledged writes.
    fn lost(&self) -> Option<String> {
        let unflushed_bytes = self.unflushed.bytes();
        (unflushed_bytes > 0 && !self.trusts_unflushed()).then(|| lost_with(unflushed_bytes))
    }

    /// Executes one request and waits for it; retries on a new connection if the old one was
    /// closed.
    fn execute(&self, request: &Request, mut data: Data<'_>) -> io::Result<()> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &mut *connection {
            match self.execute_on(opened, request, &mut data) {
                Err(Failed::Connection(_)) => *connection = None,
                Err(Failed::Request(error)) => return Err(error),
                Ok(()) => return Ok(()),
            }
        }
        if let Some(problem) = self.lost() {
            return Err(io::Error::other(problem));
        }
        let opened = connection.insert(self.dial().map_err(io::Error::other)?);
        self.execute_on(opened, request, &mut data).map_err(|failed| match failed {
            Failed::Connection(why) => io::Error::other(why),
            Failed::Request(error) => error,
        })
    }

    fn execute_on(
        &self,
        opened: &mut Opened,
        request: &Request,
        data: &mut Data<'_>,
    ) -> Result<(), Failed> {
        let deadline = Instant::now() + self.settings.timeout;
        let Opened { wire, session, received, .. } = opened;
        if request.command == Command::Flush
            && session.remote().is_some_and(|remote| !remote.can_flush)
        {
            return Ok(());
        }
        let success = match session.remote() {
            Some(remote) => self.unflushed.sent(request, remote),
            None => Success::Plain,
        };
        let mut out = Vec::new();
        session.submit(request, &mut out).map_err(|refusal| {
            Failed::Request(io::Error::new(io::ErrorKind::InvalidInput, refusal.to_string()))
        })?;
        if let Data::From(bytes) = data {
            out.extend_from_slice(bytes);
        }
        wire.send_all(&out, deadline).map_err(Failed::Connection)?;
        loop {
            let step = session.on_bytes(received, &mut out);
            match (step.event, &mut *data) {
                (Event::NeedMore, _) => {
                    let len = wire.receive(received, deadline).map_err(Failed::Connection)?;
                    if len == 0 {
                        return Err(Failed::Connection(session.on_eof().to_string()));
                    }
                }
                (Event::Payload(piece), Data::To(to)) => {
                    to[piece.start_bytes as usize..][..piece.len_bytes as usize]
                        .copy_from_slice(&received[..step.consumed]);
                }
                (Event::Zeroes(piece), Data::To(to)) => {
                    to[piece.start_bytes as usize..][..piece.len_bytes as usize].fill(0);
                }
                (Event::Extent { extent, .. }, Data::Extents(extents)) => extents.push(extent),
                (Event::Done { result, .. }, _) => {
                    received.drain(..step.consumed);
                    if result.is_ok() {
                        self.unflushed.succeeded(success);
                    }
                    return result.map_err(|errno| {
                        Failed::Request(io::Error::other(format!("the server reports: {errno}")))
                    });
                }
                (Event::Broken, _) => {
                    let failure = session.failure().expect("it is broken").to_string();
                    return Err(Failed::Connection(failure));
                }
                _ => {}
            }
            received.drain(..step.consumed);
        }
    }
}

/// Message about a lost server with this number of unflushed bytes.
pub(super) fn lost_with(unflushed_bytes: u64) -> String {
    format!(
        "the server was lost with {unflushed_bytes} acknowledged unflushed bytes; it may have lost \
         them"
    )
}

/// Error of a request.
enum Failed {
    /// The connection failed; a new one may succeed.
    Connection(String),
    Request(io::Error),
}
