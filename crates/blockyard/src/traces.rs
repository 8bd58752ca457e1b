//! Trace files: our own format, `blktrace(8)`, and logs of fio.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use blockyard_workload::trace::blktrace::{Action, Events};
use blockyard_workload::trace::{MAGIC, Trace, TraceError, iolog};

use crate::Error;

/// Limit of CPUs; the files are searched one by one.
const CPUS_MAX: u32 = 4096;

/// Reads a trace of any format; returns warnings about missing events.
///
/// # Errors
/// The file cannot be opened or read, or is no trace.
pub fn read(path: &Path, action: Action) -> Result<(Trace, Vec<String>), Error> {
    let place = path.display();
    let mut file = open(path)?;
    let mut first = [0; 4];
    let is_short = file.read_exact(&mut first).is_err();
    let trace = if !is_short && Events::begin_with(first) {
        let mut events = Events::default();
        for path in &of_all_cpus(path) {
            let file = BufReader::new(open(path)?);
            events.add(file).map_err(|error| wrong(path, &error))?;
        }
        events.into_trace(action)
    } else {
        let failed = |error| Error::file(path, error);
        file.rewind().map_err(failed)?;
        let file = BufReader::new(file);
        let trace = if !is_short && iolog::begins_with(first) {
            iolog::read(file)
        } else {
            Trace::read(file)
        };
        trace.map_err(|error| wrong(path, &error))?
    };
    let mut warnings = Vec::new();
    if let Some(at) = trace.end.cut_off_at_bytes {
        let bios = trace.bios.len();
        warnings.push(format!(
            "{place} is cut off at byte {at}: its recording did not end; {bios} bios are \
             there"
        ));
    }
    if trace.end.lost > 0 {
        let lost = trace.end.lost;
        warnings
            .push(format!("{place} lacks {lost} events, which were dropped during the recording"));
    }
    Ok((trace, warnings))
}

/// Whether a file with these first four bytes is a trace, of any format.
#[must_use]
pub fn begin_with(first: &[u8]) -> bool {
    let first: Result<[u8; 4], _> = first.try_into();
    let is_trace =
        |first| Events::begin_with(first) || iolog::begins_with(first) || MAGIC.starts_with(&first);
    first.is_ok_and(is_trace)
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|error| Error::place(&path.display(), format!("cannot open: {error}")))
}

fn wrong(path: &Path, error: &TraceError) -> Error {
    Error::Workload(format!("{}: {error}", path.display()))
}

/// `sda.blktrace.0` with the files of the other CPUs; any other name is a single file.
fn of_all_cpus(path: &Path) -> Vec<PathBuf> {
    let alone = vec![path.to_owned()];
    let Some(name) = path.to_str() else { return alone };
    let Some((base, "0")) = name.rsplit_once('.') else { return alone };
    let all = (0..CPUS_MAX).map(|cpu| PathBuf::from(format!("{base}.{cpu}")));
    all.take_while(|path| path.exists()).collect()
}
