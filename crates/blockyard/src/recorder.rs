//! Records a volume into a trace: a thread takes the events of the connections, matches the end of
//! each bio, and writes the file.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use blockyard_host::recording::{Event, Recording};
use blockyard_host::volume::Volume;
use blockyard_workload::trace::{Completion, Header, SECTORS_MAX, TracedBio, Writer};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::output::{InUse, Output, OutputFile};

/// Interval of emptying the connections' rings: at a million bios a second they are a quarter full.
const TURN: Duration = Duration::from_millis(4);
/// Interval of closing a block: the loss if the server is killed.
const BLOCK: Duration = Duration::from_secs(1);

/// The file of a trace.
#[derive(Clone, Debug)]
pub struct TraceFile {
    /// Path.
    pub path: PathBuf,
    /// Permission to replace an existing file.
    pub replace: bool,
    /// Time limit of the recording.
    pub limit: Option<Duration>,
}

/// Result of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recorded {
    /// Number of bios in the trace.
    pub bios: u64,
    /// Number of bios in the trace without an end.
    pub not_ended: u64,
    /// Number of dropped events.
    pub lost: u64,
    /// Length of the trace.
    pub seconds: f64,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bios, not_ended, lost, seconds } = *self;
        write!(f, "{bios} bios in {seconds:.3} s")?;
        if not_ended > 0 {
            write!(f, "; {not_ended} of them had not ended")?;
        }
        if lost > 0 {
            write!(f, "; {lost} events were lost, because they came too fast")?;
        }
        Ok(())
    }
}

/// A running recording.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Dropped to stop the recording.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<io::Result<Recorded>>>,
    path: PathBuf,
}

impl Recorder {
    /// Starts a recording.
    pub(crate) fn start(
        volume: &Volume,
        export: &str,
        to: &TraceFile,
        in_use: &InUse,
    ) -> Result<Self, Error> {
        let failed = |error| Error::Trace { path: to.path.clone(), source: error };
        let recording = volume.record().ok_or(Error::Recorded)?;
        let file = Output::recording(&to.path, to.replace).create(in_use)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = Header {
            volume_bytes: volume.size_bytes(),
            sector_bytes: volume.sector_size_bytes(),
            export: export.into(),
            began_unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        };
        let writer = Writer::begin(BufWriter::new(file), &header);
        let writer = writer.map_err(failed)?;
        let (stop, stopped) = channel();
        let tracer = Tracer {
            recording,
            writer,
            open: BTreeMap::new(),
            recorded: Recorded::default(),
            lost: 0,
        };
        let limit = to.limit;
        let thread = Builder::new().name("trace".into());
        let thread = thread.spawn(move || tracer.run(&stopped, limit));
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { stop: Some(stop), thread, path: to.path.clone() })
    }

    /// Whether it has reached its end.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the recording.
    pub(crate) fn stop(mut self) -> Result<Recorded, Error> {
        self.end()
    }

    fn end(&mut self) -> Result<Recorded, Error> {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else { return Ok(Recorded::default()) };
        let Ok(recorded) = thread.join() else {
            return Err(Error::Defect { targets: Vec::new() });
        };
        recorded.map_err(|source| Error::Trace { path: self.path.clone(), source })
    }
}

impl Drop for Recorder {
    /// The recording so far is a complete trace.
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// State of the writing thread.
struct Tracer {
    recording: Recording,
    writer: Writer<BufWriter<OutputFile>>,
    /// Bios in flight, by submitter and the front end's number.
    open: BTreeMap<(u32, u64), TracedBio>,
    recorded: Recorded,
    /// Number of bios that do not fit the format.
    lost: u64,
}

impl Tracer {
    fn run(mut self, stopped: &Receiver<()>, limit: Option<Duration>) -> io::Result<Recorded> {
        let began = Instant::now();
        let mut closed = began;
        loop {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let turn = left.map_or(TURN, |left| left.min(TURN));
            let waited = stopped.recv_timeout(turn);
            if waited != Err(RecvTimeoutError::Timeout) || left.is_some_and(|left| left.is_zero()) {
                break;
            }
            self.drain()?;
            if closed.elapsed() >= BLOCK {
                self.writer.close_block()?;
                closed = Instant::now();
            }
        }
        let length = self.recording.elapsed();
        self.recording.stop();
        self.drain()?;
        for bio in std::mem::take(&mut self.open).into_values() {
            self.recorded.not_ended += 1;
            self.write(&bio)?;
        }
        self.recorded.seconds = length.0 as f64 / 1e9;
        self.writer.end(length)?.into_inner()?.file().sync_all()?;
        Ok(self.recorded)
    }

    fn drain(&mut self) -> io::Result<()> {
        let mut whole = Vec::new();
        let mut lost = 0;
        let open = &mut self.open;
        self.recording.drain(|submitter, event| match event {
            Event::Came { user, sector, sectors, .. } => {
                let end = sector.checked_add(sectors.into());
                if end.is_none_or(|end| end > SECTORS_MAX) {
                    lost += 1;
                    return;
                }
                // The end of the earlier bio was dropped.
                whole.extend(open.insert((submitter, user), bio_of(submitter, event)));
            }
            Event::Ended { at, user, status } => {
                if let Some(bio) = open.remove(&(submitter, user)) {
                    let completion = Completion { latency: at.since(bio.start), status };
                    whole.push(TracedBio { completion: Some(completion), ..bio });
                }
            }
        });
        self.lost += lost;
        self.recorded.lost = self.recording.lost() + self.lost;
        self.writer.set_lost(self.recorded.lost);
        whole.iter().try_for_each(|bio| self.write(bio))
    }

    fn write(&mut self, bio: &TracedBio) -> io::Result<()> {
        self.recorded.bios += 1;
        self.writer.push(bio)
    }
}

fn bio_of(submitter: u32, event: Event) -> TracedBio {
    let Event::Came { at, op, fua, preflush, sync, sector, sectors, priority, .. } = event else {
        unreachable!("the caller has looked");
    };
    let start = at;
    let completion = None;
    TracedBio { start, op, fua, preflush, sync, sector, sectors, submitter, priority, completion }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use blockyard_engine::bio::{BlkStatus, Op};
    use blockyard_engine::priority::Priority;
    use blockyard_host::file::DeviceFile;
    use blockyard_host::local::{Client, Request};
    use blockyard_host::volume::VolumeOptions;
    use blockyard_workload::trace::Trace;

    use super::*;

    fn volume() -> Arc<Volume> {
        let file = DeviceFile::in_memory(1 << 20).unwrap();
        Arc::new(Volume::from_file(file, &VolumeOptions::default()).unwrap())
    }

    #[test]
    fn trace_has_what_every_client_did_and_how_it_ended() {
        let volume = volume();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.trace");
        let to = TraceFile { path: path.clone(), replace: false, limit: None };
        let recorder = Recorder::start(&volume, "home", &to, &InUse::default()).unwrap();
        assert!(Recorder::start(&volume, "home", &to, &InUse::default()).is_err(), "one at a time");
        let mut clients =
            [Priority::IDLE, Priority::default()].map(|one| Client::new(&volume, one).unwrap());
        for user in 0..300 {
            for (client, op) in clients.iter_mut().zip([Op::Read, Op::Write]) {
                let offset_bytes = user * 4096;
                client.submit(Request { user, op, offset_bytes, len_bytes: 4096, sync: false });
            }
        }
        for client in &mut clients {
            client.wait(client.in_flight(), &mut Vec::new());
        }
        let recorded = recorder.stop().unwrap();
        assert_eq!((recorded.bios, recorded.lost, recorded.not_ended), (600, 0, 0));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let trace = Trace::read(File::open(&path).unwrap()).unwrap();
        assert_eq!((trace.header.volume_bytes, &*trace.header.export), (1 << 20, "home"));
        assert_eq!(trace.end.length.0 as f64 / 1e9, recorded.seconds);
        let bad = |bio: &&TracedBio| bio.completion.unwrap().status == BlkStatus::Invalid;
        assert_eq!(trace.bios.iter().filter(bad).count(), 2 * (300 - 256), "behind the end");
        for (op, priority) in [(Op::Read, Priority::IDLE), (Op::Write, Priority::default())] {
            let of = trace.bios.iter().filter(|bio| bio.op == op);
            assert!(of.clone().all(|bio| bio.priority == priority));
            assert!(of.map(|bio| bio.sector).eq((0..300).map(|number| number * 8)));
        }
    }

    /// The drop of a recorder must not unwind either.
    #[test]
    fn panic_of_the_recording_thread_is_an_error() {
        let panics = || Recorder {
            stop: None,
            thread: Some(std::thread::spawn(|| panic!("a defect"))),
            path: PathBuf::new(),
        };
        assert!(matches!(panics().stop(), Err(Error::Defect { .. })));
        drop(panics());
    }

    #[test]
    fn file_that_is_there_stays_unless_it_may_be_replaced() {
        let volume = volume();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.trace");
        std::fs::write(&path, "mine").unwrap();
        let to = |replace| TraceFile { path: path.clone(), replace, limit: Some(Duration::ZERO) };
        let failure = Recorder::start(&volume, "", &to(false), &InUse::default()).unwrap_err();
        assert!(failure.is_busy() && failure.to_string().contains("`replace`"), "{failure}");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        let recorder = Recorder::start(&volume, "", &to(true), &InUse::default()).unwrap();
        recorder.thread.as_ref().unwrap();
        drop(recorder);
        assert_eq!(Trace::read(File::open(&path).unwrap()).unwrap().bios, []);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
