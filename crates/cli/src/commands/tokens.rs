//! `blockyard token`: the tokens of a LUKS2 header, with the words of cryptsetup.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use blockyard::header;
use blockyard::keys::{Token, Tokens};
use clap::{Args, Subcommand, ValueHint};

use crate::args::{ForceArgs, HeaderPlaceArgs, ShortHelpArgs};
use crate::failure::{Failure, printable};
use crate::output::{InUse, Output, print, say};
use crate::volume_spec::warn_without_lock;

/// Longest JSON of a token: the area of a header.
const JSON_LEN_MAX_BYTES: u64 = 4 << 20;

/// List, import, export or remove tokens of a LUKS2 volume
///
/// A token says where the passphrase of a keyslot comes from: a TPM, a tang server, a keyring. Its
/// JSON is that of cryptsetup. Commands that open a volume try its tokens before they ask for a
/// passphrase.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct TokenCommand {
    #[command(subcommand)]
    action: Action,

    #[command(flatten)]
    help: ShortHelpArgs,
}

#[derive(Subcommand, Debug)]
#[command(disable_help_flag = true)]
enum Action {
    List(ListArgs),
    Import(ImportArgs),
    Export(ExportArgs),
    Remove(RemoveArgs),
}

/// List the tokens: number, type and keyslots
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ListArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// Print the tokens as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Store a token from its JSON
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ImportArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// The JSON; the default is standard input, as is `-`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json_file: Option<PathBuf>,

    /// Number of the token; the default is the first free one
    #[arg(long, value_name = "N")]
    token_id: Option<u32>,

    /// Keyslot that the token gets in addition to those of its JSON
    #[arg(short = 'S', long, value_name = "N")]
    key_slot: Option<u32>,

    /// Replace the token that has this number
    #[arg(long, requires = "token_id")]
    token_replace: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Write the JSON of a token
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ExportArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// The token
    #[arg(long, value_name = "N")]
    token_id: u32,

    /// Output file; the default is standard output, as is `-`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json_file: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Remove a token; its keyslots stay
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct RemoveArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// The token
    #[arg(long, value_name = "N")]
    token_id: u32,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Runs the action.
pub(crate) fn run(command: &TokenCommand) -> Result<(), Failure> {
    match &command.action {
        Action::List(args) => list(args),
        Action::Import(args) => import(args),
        Action::Export(args) => export(args),
        Action::Remove(args) => remove(args),
    }
}

fn tokens(place: &HeaderPlaceArgs) -> Tokens {
    Tokens::of(place.path()).place(place.in_disk())
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let tokens = tokens(&args.place).list()?;
    if args.json {
        let members = tokens.iter().map(|(number, token)| format!("\"{number}\":{token}"));
        return print(&format!("{{{}}}\n", members.collect::<Vec<_>>().join(",")));
    }
    let line = |(number, token): &(u32, Token)| {
        let keyslots = match token.keyslots().join(", ") {
            none if none.is_empty() => "no keyslot".to_owned(),
            keyslots => format!("keyslots {keyslots}"),
        };
        format!("{number}: {}, {}\n", printable(token.kind()), printable(&keyslots))
    };
    print(&tokens.iter().map(line).collect::<String>())
}

fn import(args: &ImportArgs) -> Result<(), Failure> {
    warn_without_lock(args.place.path(), &args.place.in_disk());
    // Before a person types a token for nothing.
    header::read(args.place.path(), &args.place.in_disk(), None)?;
    let json = json(args.json_file.as_deref())?;
    let number =
        tokens(&args.place).import(&json, args.token_id, args.key_slot, args.token_replace)?;
    say(&format!("{}: token {number} was imported", args.place.path().display()));
    Ok(())
}

/// Reads the JSON, one byte more than its limit at most.
fn json(file: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let file = file.filter(|file| file.as_os_str() != "-");
    let place = file.map_or("standard input".to_owned(), |file| file.display().to_string());
    let source: io::Result<Box<dyn Read>> = match file {
        None => Ok(Box::new(io::stdin())),
        Some(file) => File::open(file).map(|file| Box::new(file) as Box<dyn Read>),
    };
    let mut json = Vec::new();
    source
        .and_then(|source| source.take(JSON_LEN_MAX_BYTES + 1).read_to_end(&mut json))
        .map_err(|error| Failure::failed(format!("cannot read {place}: {error}")))?;
    Ok(json)
}

fn export(args: &ExportArgs) -> Result<(), Failure> {
    let token = tokens(&args.place).get(args.token_id)?.to_string();
    match args.json_file.as_deref().filter(|file| file.as_os_str() != "-") {
        None => print(&token),
        Some(file) => {
            let in_use = InUse::of_paths([args.place.path()]);
            Ok(Output::private(file, args.force.force).write(&in_use, token)?)
        }
    }
}

fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    warn_without_lock(args.place.path(), &args.place.in_disk());
    tokens(&args.place).remove(args.token_id)?;
    say(&format!("{}: token {} was removed", args.place.path().display(), args.token_id));
    Ok(())
}
