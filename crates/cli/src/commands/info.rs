//! `blockyard info`: shows a header, partitions, the mappings of a table, or the exports of an NBD
//! server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use blockyard::header::Found;
use blockyard::{Place, Volume};
use clap::{Args, ValueHint};
use serde::Serialize;

use crate::args::{HeaderArgs, HeaderCopy, PartitionArgs, ShortHelpArgs};
use crate::failure::{Failure, printable};
use crate::json::pretty;
use crate::nbd::{Client, ServerExport, Uri};
use crate::output::{print, say};
use crate::size::human_size;
use crate::volume_spec::read_table;

/// Show headers, partitions, tables, or the exports of an NBD server
///
/// Needs no passphrase. A header is that of LUKS or BitLocker. An export is named by its URI:
/// nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct InfoArgs {
    /// Image file, block device, or the URI of an export
    #[arg(value_name = "VOLUME|URI", value_hint = ValueHint::FilePath,
          required_unless_present_any = ["table", "header"])]
    volume: Option<OsString>,

    #[command(flatten)]
    partition: PartitionArgs,

    #[command(flatten)]
    header: HeaderArgs,

    /// Show this copy of a LUKS2 header, which may be outdated or left over from an earlier volume
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
        _ => show_header(Path::new(volume), args),
    }
}

/// The JSON of a table.
#[derive(Serialize)]
struct TableReport<'a> {
    kind: &'static str,
    size_bytes: u64,
    description: &'a str,
}

/// The JSON of an export.
#[derive(Serialize)]
struct ExportReport<'a> {
    kind: &'static str,
    uri: String,
    export: &'a str,
    description: Option<&'a str>,
    size_bytes: u64,
    flags: Vec<&'static str>,
    block_sizes: Option<BlockSizes>,
    structured_replies: bool,
    contexts: &'a [String],
}

/// The block sizes that a server sends.
#[derive(Serialize)]
struct BlockSizes {
    minimum_bytes: u32,
    preferred_bytes: u32,
    maximum_bytes: u32,
}

fn show_header(path: &Path, args: &InfoArgs) -> Result<(), Failure> {
    let place = match args.header.header {
        Some(_) => Place::Whole,
        None => args.partition.place(),
    };
    let found = Found::read(path, &place, args.header_copy.map(Into::into))?;
    if args.json {
        return print(&pretty(&found.report()));
    }
    for notice in found.notices() {
        say(&format!("warning: {}: {}", path.display(), printable(&notice)));
    }
    print(&ended(&found.to_string()))
}

fn show_table(path: &Path, as_json: bool) -> Result<(), Failure> {
    let text = read_table(path)?;
    let volume = Volume::options().table_text(text).read_only(true).open(path)?;
    let text = volume.describe();
    if as_json {
        let report = TableReport { kind: "table", size_bytes: volume.len(), description: &text };
        return print(&pretty(&report));
    }
    print(&format!("{}: {text}\n", human_size(volume.len())))
}

fn show_export(uri: &Uri, as_json: bool) -> Result<(), Failure> {
    let export = Client::connect(uri)?.export(uri)?;
    print(&if as_json {
        pretty(&ExportReport::of(uri, &export))
    } else {
        export_text(uri, &export)
    })
}

impl<'a> ExportReport<'a> {
    fn of(uri: &'a Uri, export: &'a ServerExport) -> Self {
        let sizes = export.block_sizes.map(|[minimum_bytes, preferred_bytes, maximum_bytes]| {
            BlockSizes { minimum_bytes, preferred_bytes, maximum_bytes }
        });
        Self {
            kind: "nbd",
            uri: uri.to_string(),
            export: export.name.as_ref().unwrap_or(&uri.export),
            description: export.description.as_deref(),
            size_bytes: export.size_bytes,
            flags: export.flag_names(),
            block_sizes: sizes,
            structured_replies: export.structured_replies,
            contexts: &export.contexts,
        }
    }
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

/// Text with exactly one newline at the end.
fn ended(text: &str) -> String {
    format!("{}\n", text.trim_end_matches('\n'))
}
