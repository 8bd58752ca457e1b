//! Settings of a server that only a restart changes.

use clap::Args;

use super::tls::TlsArgs;
use super::{ServeArgs, THREADS_MAX};
use crate::config::Config;
use crate::failure::Failure;
use crate::placement::{PlacementArgs, Setting};

/// Threads for ciphers, and the CPUs of all threads.
#[derive(Args, Debug)]
pub(super) struct ComputingArgs {
    /// Cipher worker threads, besides the connections' threads. Volumes share them, unless their
    /// pipelines differ [default: chosen by the cipher's speed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=THREADS_MAX))]
    threads: Option<u16>,

    #[command(flatten)]
    placement: PlacementArgs,
}

/// The settings, from options and a configuration.
pub(super) struct Fixed {
    /// Names of keys, with their values as text.
    values: Vec<(&'static str, String)>,
    pub(super) threads: Option<u16>,
    placement: PlacementArgs,
    /// Volumes can be suspended, and tell more about themselves.
    pub(super) is_controlled: bool,
    pub(super) tls: TlsArgs,
}

impl Fixed {
    /// Options have precedence.
    pub(super) fn of(args: &ServeArgs, config: &Config) -> Self {
        let tls = args.tls.or(config.tls.clone());
        let ComputingArgs { threads, placement } = &args.computing;
        let threads = threads.or(config.threads);
        let placement = placement.or(&config.placement);
        let control = args.control.as_ref().or(config.control.as_ref());
        let metrics = args.metrics.as_ref().or(config.metrics.as_ref());
        let values = vec![
            ("socket", shown(args.socket.as_ref().or(config.socket.as_ref()))),
            ("listen", shown(args.listen.as_ref().or(config.listen.as_ref()))),
            ("tls", format!("{:?}", tls.mode())),
            ("threads", shown(threads.as_ref())),
            ("cpus or numa", format!("{placement:?}")),
            ("max_connections", shown(args.max_connections.or(config.max_connections).as_ref())),
            ("socket_mode, socket_owner or socket_group", {
                format!("{:?}", args.access.clone().or(config.access.clone()))
            }),
            ("pid_file", shown(args.lifetime.pid_file.as_ref().or(config.pid_file.as_ref()))),
            ("control", shown(control)),
            ("metrics", shown(metrics)),
            ("sandbox or sandbox_allow", format!("{:?}", args.sandbox.or(config.sandbox.clone()))),
        ];
        let is_controlled = control.is_some() || metrics.is_some();
        Self { values, threads, placement, is_controlled, tls }
    }

    /// Takes the CPUs and the memory for this thread and all later ones. Returns the CPUs, if they
    /// are limited.
    pub(super) fn place(&self, args: &ServeArgs) -> Result<Option<Vec<u16>>, Failure> {
        let given = &args.computing.placement;
        self.placement.apply().map_err(|(setting, failure)| {
            let is_of_file = match setting {
                Setting::Cpus => given.cpus.is_none(),
                Setting::Numa => given.numa.is_none(),
            };
            match &args.config {
                Some(path) if is_of_file => failure.at(path.display()),
                _ => failure,
            }
        })
    }

    /// The names of settings that differ.
    pub(super) fn changed(&self, other: &Self) -> Vec<&'static str> {
        let both = self.values.iter().zip(&other.values);
        both.filter(|(one, other)| one != other).map(|((name, _), _)| *name).collect()
    }
}

fn shown<T: std::fmt::Debug>(value: Option<&T>) -> String {
    format!("{value:?}")
}
