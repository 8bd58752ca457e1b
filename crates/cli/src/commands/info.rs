//! `blockyard info`: what a header says, what a table maps, or what an NBD server offers.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use blockyard_crypt::luks::{Header, Notice};
use blockyard_crypt::source::{HeaderSource, SourceError};
use blockyard_host::file::HeaderLock;
use blockyard_host::volume::{Volume, VolumeOptions};
use clap::{Args, ValueHint};
use serde_json::{Value, json};

use crate::args::{HeaderArgs, HeaderCopy, ShortHelpArgs};
use crate::failure::{Failure, printable};
use crate::nbd::{Client, ServerExport, Uri};
use crate::output::{print, say};
use crate::size::human_size;
use crate::volume::read_table;

/// Show a LUKS header, or what an NBD server serves
///
/// Needs no passphrase. An export is named by its URI: nbd://HOST:PORT/EXPORT or
/// nbd+unix:///EXPORT?socket=PATH.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct InfoArgs {
    /// Image file, block device, or the URI of an export
    #[arg(value_name = "VOLUME|URI", value_hint = ValueHint::FilePath,
          required_unless_present_any = ["table", "header"])]
    volume: Option<OsString>,

    #[command(flatten)]
    header: HeaderArgs,

    /// Show this copy of a LUKS2 header, which may be outdated or left from an earlier volume
    #[arg(long, value_name = "COPY", value_enum, conflicts_with = "table")]
    header_copy: Option<HeaderCopy>,

    /// Show a device-mapper table instead
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["volume", "header"])]
    table: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// A file to look at, without the lock of a volume: one that is being served has a header all the
/// same. The lock of the header keeps it from being written meanwhile.
pub(super) struct HeaderFile {
    file: File,
    len_bytes: u64,
    _lock: HeaderLock,
}

impl HeaderFile {
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let (file, len_bytes) = Self::opened(path).map_err(|error| {
            Failure::wrong_device(format!("{}: cannot look at it: {error}", path.display()))
        })?;
        let lock = HeaderLock::to_read(&file, path)?;
        Ok(Self { file, len_bytes, _lock: lock })
    }

    fn opened(path: &Path) -> io::Result<(File, u64)> {
        // Looked at before it is opened: to open a FIFO is to wait for a writer.
        let file_type = fs::metadata(path)?.file_type();
        if file_type.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if !file_type.is_file() && !file_type.is_block_device() {
            return Err(io::Error::other("it is neither a regular file nor a block device"));
        }
        let mut file = File::open(path)?;
        let len_bytes = file.seek(SeekFrom::End(0))?;
        Ok((file, len_bytes))
    }
}

impl HeaderSource for HeaderFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let len_bytes = buf.len() as u64;
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > self.len_bytes) {
            let device_len_bytes = self.len_bytes;
            return Err(SourceError::BehindEnd { offset_bytes, len_bytes, device_len_bytes });
        }
        Ok(self.file.read_exact_at(buf, offset_bytes)?)
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

/// Shows it.
pub(crate) fn run(args: &InfoArgs) -> Result<(), Failure> {
    if let Some(table) = &args.table {
        return show_table(table, args.json);
    }
    let volume = args.header.header.as_deref().map(Path::as_os_str).or(args.volume.as_deref());
    let volume = volume.expect("clap demands one of volume, header and table");
    match volume.to_str() {
        Some(text) if Uri::is_uri(text) => {
            show_export(&Uri::parse(text).map_err(Failure::failed)?, args.json)
        }
        _ => show_header(Path::new(volume), args.header_copy, args.json),
    }
}

fn show_header(path: &Path, copy: Option<HeaderCopy>, as_json: bool) -> Result<(), Failure> {
    let place = path.display();
    let source = HeaderFile::open(path)?;
    let (header, notices) = match copy {
        None => Header::read(&source),
        Some(copy) => Header::read_copy(&source, copy.into()).map(|header| (header, Vec::new())),
    }
    .map_err(|error| Failure::from(error).at(&place))?;
    let notices: Vec<_> = notices.iter().map(Notice::to_string).collect();
    if as_json {
        let mut info = header.info();
        if let Value::Object(members) = &mut info {
            members.insert("notices".into(), json!(notices));
        }
        return print(&pretty(&info));
    }
    for notice in &notices {
        say(&format!("warning: {place}: {}", printable(notice)));
    }
    print(&ended(&header.to_string()))
}

fn show_table(path: &Path, as_json: bool) -> Result<(), Failure> {
    let options = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let volume = Volume::from_table(&read_table(path)?, &options)
        .map_err(|error| Failure::from(error).at(path.display()))?;
    let text = volume.describe();
    if as_json {
        return print(&pretty(&json!({
            "kind": "table",
            "size_bytes": volume.size_bytes(),
            "description": text,
        })));
    }
    print(&format!("{}: {text}\n", human_size(volume.size_bytes())))
}

fn show_export(uri: &Uri, as_json: bool) -> Result<(), Failure> {
    let export = Client::connect(uri)?.export(uri)?;
    print(&if as_json { pretty(&export_json(uri, &export)) } else { export_text(uri, &export) })
}

fn export_json(uri: &Uri, export: &ServerExport) -> Value {
    let block_sizes = export.block_sizes.map(|[minimum, preferred, maximum]| {
        json!({"minimum_bytes": minimum, "preferred_bytes": preferred, "maximum_bytes": maximum})
    });
    json!({
        "kind": "nbd",
        "uri": uri.to_string(),
        "export": export.name.as_ref().unwrap_or(&uri.export),
        "description": export.description,
        "size_bytes": export.size_bytes,
        "flags": export.flag_names(),
        "block_sizes": block_sizes,
        "structured_replies": export.structured_replies,
        "contexts": export.contexts,
    })
}

fn export_text(uri: &Uri, export: &ServerExport) -> String {
    let mut text = format!("{uri}\n");
    let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<20}{value}\n"));
    line("export:", &format!("{:?}", export.name.as_ref().unwrap_or(&uri.export)));
    if let Some(description) = &export.description {
        line("description:", description);
    }
    line("size:", &format!("{} ({} bytes)", human_size(export.size_bytes), export.size_bytes));
    line("flags:", &export.flag_names().join(" "));
    if let Some([minimum, preferred, maximum]) = export.block_sizes {
        let sizes = format!("minimum {minimum}, preferred {preferred}, maximum {maximum} bytes");
        line("block sizes:", &sizes);
    }
    line("structured replies:", if export.structured_replies { "yes" } else { "no" });
    if !export.contexts.is_empty() {
        line("contexts:", &export.contexts.join(" "));
    }
    text
}

fn pretty(value: &Value) -> String {
    ended(&serde_json::to_string_pretty(value).expect("a value of ours has no odd keys"))
}

/// With a newline at the end, but not two.
fn ended(text: &str) -> String {
    format!("{}\n", text.trim_end_matches('\n'))
}
