//! Settings of a server that only a restart changes.

use super::ServeArgs;
use super::tls::TlsArgs;
use crate::config::Config;

/// The settings, from options and a configuration.
pub(super) struct Fixed {
    /// Names of keys, with their values as text.
    values: Vec<(&'static str, String)>,
    pub(super) threads: Option<u16>,
    /// Volumes can be suspended, and tell more about themselves.
    pub(super) is_controlled: bool,
    pub(super) tls: TlsArgs,
}

impl Fixed {
    /// Options have precedence.
    pub(super) fn of(args: &ServeArgs, config: &Config) -> Self {
        let tls = args.tls.or(config.tls.clone());
        let threads = args.threads.or(config.threads);
        let control = args.control.as_ref().or(config.control.as_ref());
        let metrics = args.metrics.as_ref().or(config.metrics.as_ref());
        let values = vec![
            ("socket", shown(args.socket.as_ref().or(config.socket.as_ref()))),
            ("listen", shown(args.listen.as_ref().or(config.listen.as_ref()))),
            ("tls", format!("{:?}", tls.mode())),
            ("threads", shown(threads.as_ref())),
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
        Self { values, threads, is_controlled, tls }
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
