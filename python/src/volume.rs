//! Open volumes, and headers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard::header::Found;
use blockyard::{Key, Options, Place, TcryptOptions, Volume};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::buffer::Pinned;
use crate::error::{argument, raised, raised_at, raised_io};
use crate::owned::Owned;

/// An open volume. Its methods may be called from any number of threads.
#[pyclass(frozen, name = "Volume")]
pub(crate) struct NativeVolume {
    open: Owned<Arc<Volume>>,
    /// Damage of the header that leaves the volume usable.
    #[pyo3(get)]
    notices: Vec<String>,
}

#[pymethods]
impl NativeVolume {
    #[new]
    #[pyo3(signature = (
        path, *, passphrase, key_file, read_only, kind, header, partition, offset, pim
    ))]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 makes a path for the call")]
    #[expect(clippy::too_many_arguments, reason = "arguments of blockyard.open, by their names")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        passphrase: Option<&Bound<'_, PyAny>>,
        key_file: Option<PathBuf>,
        read_only: bool,
        kind: Option<&str>,
        header: Option<PathBuf>,
        partition: Option<String>,
        offset: u64,
        pim: Option<u32>,
    ) -> PyResult<Self> {
        let key = key(py, passphrase, key_file.as_deref())?;
        let options = of_kind(kind, pim)?.read_only(read_only).place(place(partition, offset)?);
        let options = match header {
            Some(header) => options.header(header),
            None => options,
        };
        let (volume, notices) = py.detach(|| opened(&path, options, key.as_ref()))?;
        Ok(Self { open: Owned::new(Arc::new(volume)), notices })
    }

    #[getter]
    fn size(&self) -> PyResult<u64> {
        self.open.get(|volume| volume.len())
    }

    #[getter]
    fn sector_size(&self) -> PyResult<u32> {
        self.open.get(|volume| volume.sector_size())
    }

    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        self.open.get(|volume| volume.is_read_only())
    }

    #[getter]
    fn description(&self) -> PyResult<String> {
        self.open.get(|volume| volume.describe())
    }

    fn pread<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let volume = self.volume()?;
        let left = usize::try_from(volume.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        PyBytes::new_with(py, size.min(left), |bytes| {
            py.detach(move || volume.read_exact_at(bytes, offset)).map_err(raised_io)
        })
    }

    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let volume = self.volume()?;
        let mut pinned = Pinned::new(buffer)?;
        let bytes = pinned.bytes_mut()?;
        py.detach(move || volume.read_at(bytes, offset)).map_err(raised_io)
    }

    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let volume = self.volume()?;
        let pinned = Pinned::new(data)?;
        let bytes = pinned.bytes()?;
        py.detach(move || volume.write_at(bytes, offset)).map_err(raised_io)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let volume = self.volume()?;
        py.detach(move || volume.flush()).map_err(raised_io)
    }

    fn close(&self, py: Python<'_>) {
        let volume = self.open.take();
        py.detach(move || drop(volume));
    }
}

impl NativeVolume {
    /// The volume, which a concurrent `close` does not end.
    pub(crate) fn volume(&self) -> PyResult<Arc<Volume>> {
        self.open.get(Arc::clone)
    }
}

/// The facts of a header or a partition table, as JSON.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 makes a path for the call")]
pub(crate) fn info(
    py: Python<'_>,
    path: PathBuf,
    partition: Option<String>,
    offset: u64,
) -> PyResult<String> {
    let place = place(partition, offset)?;
    let found =
        py.detach(|| Found::read(&path, &place, None).map_err(|error| raised_at(&path, error)));
    let report = found?.report();
    Ok(serde_json::to_string(&report).expect("strings and numbers always have a JSON form"))
}

/// Reads the header, derives the key, and starts the ciphers.
fn opened(path: &Path, options: Options, key: Option<&Key>) -> PyResult<(Volume, Vec<String>)> {
    let locked = options.read(path).map_err(raised)?;
    let notices = locked.notices();
    let key = match key {
        Some(_) if !locked.needs_key() => {
            let path = path.display();
            return Err(argument(format!("{path}: this kind takes no passphrase and no key_file")));
        }
        Some(key) => locked.unlock(key),
        None if locked.needs_key() => {
            let path = path.display();
            let problem = "the volume is encrypted: passphrase or key_file is missing";
            return Err(argument(format!("{path}: {problem}")));
        }
        None => locked.unlock_keyless(),
    };
    let volume = key.and_then(|key| locked.start(key)).map_err(raised)?;
    Ok((volume, notices))
}

/// The secret that opens the volume, in memory that is locked and wiped.
fn key(
    py: Python<'_>,
    passphrase: Option<&Bound<'_, PyAny>>,
    file: Option<&Path>,
) -> PyResult<Option<Key>> {
    match (passphrase, file) {
        (Some(_), Some(_)) => Err(argument("give either passphrase or key_file")),
        // A key file may be a pipe, into which another thread of the program writes.
        (None, Some(file)) => py.detach(|| Key::file(file)).map(Some).map_err(raised),
        (None, None) => Ok(None),
        (Some(passphrase), None) => {
            let bytes = match passphrase.cast::<PyString>() {
                Ok(text) => text.encode_utf8()?.into_any(),
                Err(_) => passphrase.clone(),
            };
            Ok(Some(Key::passphrase(Pinned::new(&bytes)?.bytes()?)))
        }
    }
}

fn of_kind(kind: Option<&str>, pim: Option<u32>) -> PyResult<Options> {
    let options = Volume::options();
    if pim.is_some() && kind != Some("tcrypt") {
        return Err(argument("pim is for kind \"tcrypt\""));
    }
    Ok(match kind {
        None => options,
        Some("luks") => options.luks(None),
        Some("bitlk") => options.bitlk(),
        Some("tcrypt") => options.tcrypt(TcryptOptions { pim, ..TcryptOptions::default() }),
        Some("table") => options.table(),
        Some("raw") => options.raw(),
        Some(other) => {
            return Err(argument(format!(
                "kind {other:?}: the kinds are luks, bitlk, tcrypt, table and raw; without one, \
                 the header decides"
            )));
        }
    })
}

fn place(partition: Option<String>, offset: u64) -> PyResult<Place> {
    match (partition, offset) {
        (Some(_), 1..) => Err(argument("give either partition or offset")),
        (Some(name), 0) => Ok(Place::Partition(name)),
        (None, 0) => Ok(Place::Whole),
        (None, _) => Ok(Place::Offset(offset)),
    }
}
