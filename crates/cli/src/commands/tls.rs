//! `blockyard tls`: makes and shows certificates for NBD over TLS.

use std::fmt::Write as _;
use std::path::PathBuf;

use blockyard::tls::{self, Certificate, Making};
use clap::{Args, Subcommand, ValueHint};

use crate::args::{ForceArgs, ShortHelpArgs};
use crate::failure::{Failure, printable};
use crate::nbd::{DEFAULT_PORT, Server, Uri, UriTls};
use crate::output::print;

/// Ten years.
const DAYS: u16 = 3650;

/// Make and show certificates for NBD over TLS
///
/// The files have the names of QEMU and nbdkit, which can use them too. Pre-shared keys (PSK) are
/// not supported.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct TlsCommand {
    #[command(subcommand)]
    action: Action,

    #[command(flatten)]
    help: ShortHelpArgs,
}

#[derive(Subcommand, Debug)]
#[command(disable_help_flag = true)]
enum Action {
    Init(InitArgs),
    AddClient(AddClientArgs),
    Show(ShowArgs),
}

/// Make a certificate authority (CA) and a server's certificate
///
/// The server needs ca-cert.pem, server-cert.pem and server-key.pem. A client needs a copy of
/// ca-cert.pem. `ca-key.pem` makes further certificates: keep it away from servers.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct InitArgs {
    /// Directory for the files
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,

    /// Host names and IP addresses by which clients reach the server; `localhost` serves for Unix
    /// sockets
    #[arg(long = "host", value_name = "NAME", required = true, num_args = 1..)]
    hosts: Vec<String>,

    /// Days until the certificates expire
    #[arg(long, value_name = "N", default_value_t = DAYS,
          value_parser = clap::value_parser!(u16).range(1..))]
    days: u16,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Make a client's certificate, for servers with --tls-verify-peer
///
/// The new directory DIR/NAME has the client's files. Copy it to the client, and name it with
/// `tls-certificates` in the URI.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct AddClientArgs {
    /// Directory of `tls init`
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,

    /// Name of the client, for --tls-authz
    #[arg(value_name = "NAME")]
    name: String,

    /// Days until the certificate expires
    #[arg(long, value_name = "N", default_value_t = DAYS,
          value_parser = clap::value_parser!(u16).range(1..))]
    days: u16,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Show the certificates of a directory: names, end, fingerprint
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ShowArgs {
    /// Directory of certificates
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Runs the command.
pub(crate) fn run(command: &TlsCommand) -> Result<(), Failure> {
    match &command.action {
        Action::Init(args) => {
            let making = Making { days: args.days, replace: args.force.force };
            tls::init(&args.dir, &args.hosts, making)?;
            let dir = args.dir.display();
            print(&format!(
                "{dir}: a CA, and a server's certificate for {}\n\
                 next: blockyard tls add-client {dir} NAME, and blockyard serve VOLUME --listen \
                 HOST --tls-certificates {dir} --tls-verify-peer\n",
                printable(&args.hosts.join(", "))
            ))
        }
        Action::AddClient(args) => {
            let making = Making { days: args.days, replace: args.force.force };
            let dir = tls::add_client(&args.dir, &args.name, making)?;
            let tls = UriTls { certificates: Some(dir.clone()), ..UriTls::default() };
            let server = Server::Tcp("HOST".into(), DEFAULT_PORT);
            let uri = Uri { server, export: String::new(), tls: Some(tls) };
            print(&format!(
                "{}: the files of the client {}\n\
                 next: copy this directory to the client, and give it in the URI: {uri}\n",
                printable(&dir.display().to_string()),
                printable(&args.name)
            ))
        }
        Action::Show(args) => {
            let shown: String = tls::show(&args.dir)?.iter().map(text).collect();
            print(&shown)
        }
    }
}

fn text(certificate: &Certificate) -> String {
    let Certificate { path, subject, names, expires, fingerprint, flaws } = certificate;
    let mut text = format!(
        "{}\n  subject:      {}\n  names:        {}\n  expires:      {expires}\n  fingerprint:  \
         {fingerprint}\n",
        path.display(),
        printable(subject),
        printable(&names.join(", ")),
    );
    for flaw in flaws {
        let flaw = format!("{}; {}", flaw.problem, flaw.remedy);
        let _ = writeln!(text, "  refused:      {}", printable(&flaw));
    }
    text
}
