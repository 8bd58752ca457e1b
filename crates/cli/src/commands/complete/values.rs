//! Values of arguments that the definition does not list: names from other words of the line, and
//! from the parts of the program that know them.

use std::time::Duration;

use blockyard::Control;
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_engine::elevator::ElevatorType;
use clap::{Arg, Command};

use super::{Answer, Candidate, files};

/// Time for the answer of a control socket: a person waits for it.
const CONTROL_TIME: Duration = Duration::from_secs(2);

/// The usual ciphers; a volume may have others.
const CIPHERS: &[&str] = &[
    "aes-xts-plain64",
    "aes-cbc-essiv:sha256",
    "aes-cbc-plain64",
    "serpent-xts-plain64",
    "twofish-xts-plain64",
    "camellia-xts-plain64",
    "xchacha12,aes-adiantum-plain64",
    "xchacha20,aes-adiantum-plain64",
];

/// Words of a line, by their argument.
#[derive(Default)]
pub(super) struct Words<'a> {
    pub(super) positionals: Vec<&'a str>,
    /// Options by the name in the definition, and their values.
    options: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    pub(super) fn add(&mut self, option: &'a Arg, value: &'a str) {
        self.options.push((option.get_id().as_str(), value));
    }

    /// The first value of an option.
    #[cfg(feature = "lab")]
    fn option(&self, id: &str) -> Option<&'a str> {
        self.options.iter().find(|(name, _)| *name == id).map(|(_, value)| *value)
    }

    /// All values of an argument, and the kind of files.
    pub(super) fn values(&self, command: &Command, argument: &Arg, value: &str) -> Answer {
        let candidates = match argument.get_id().as_str() {
            "export" => self.exports(),
            "elevator" if value.contains(',') => tunables(value),
            "cipher" | "keyslot_cipher" => named(CIPHERS.iter().copied()),
            "hash" => named(HashAlgorithm::names()),
            #[cfg(feature = "lab")]
            "experiment" | "experiments" | "lab" => lab::experiments(),
            #[cfg(feature = "lab")]
            "variant" | "variants" => self.experiment().map_or_else(Vec::new, lab::variants),
            #[cfg(feature = "lab")]
            "set" => lab::settings(self.experiment(), value),
            #[cfg(feature = "lab")]
            "workload" => lab::workloads(),
            "of" if command.get_name() == "man" => self.pages(),
            "words" if command.get_name() == "message" => self.messages(),
            _ => listed(argument),
        };
        Answer { files: files(argument), candidates }
    }

    /// Exports of the server whose control socket the line names.
    fn exports(&self) -> Vec<Candidate> {
        let Some(socket) = self.positionals.first() else { return Vec::new() };
        let status = Control::at(*socket).timeout(CONTROL_TIME).status();
        let devices = status.map(|status| status.devices).unwrap_or_default();
        let exports = devices.into_iter().flat_map(|device| device.exports);
        exports.map(|export| Candidate::new(export, "")).collect()
    }

    #[cfg(feature = "lab")]
    fn experiment(&self) -> Option<&'a str> {
        self.option("lab").or_else(|| self.positionals.first().copied())
    }

    /// Commands that have a page.
    fn pages(&self) -> Vec<Candidate> {
        let definition = crate::args::definition();
        let found =
            self.positionals.iter().try_fold(&definition, |at, word| at.find_subcommand(word));
        let below = found.into_iter().flat_map(Command::get_subcommands);
        let below = below.filter(|below| !below.is_hide_set());
        below
            .map(|below| Candidate::new(below.get_name(), super::about(below.get_about())))
            .collect()
    }

    fn messages(&self) -> Vec<Candidate> {
        match self.positionals[..] {
            [_socket] => named(["key"]),
            [_socket, "key"] => named(["set", "wipe"]),
            _ => Vec::new(),
        }
    }
}

fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Candidate> {
    names.into_iter().map(|name| Candidate::new(name, "")).collect()
}

/// Values that the definition lists.
fn listed(argument: &Arg) -> Vec<Candidate> {
    let values = argument.get_possible_values();
    let values = values.iter().filter(|value| !value.is_hide_set());
    values.map(|value| Candidate::new(value.get_name(), super::about(value.get_help()))).collect()
}

/// Tunables of the elevator behind the last comma, `NAME,TUNABLE=`.
fn tunables(value: &str) -> Vec<Candidate> {
    let (before, _) = value.rsplit_once(',').unwrap_or(("", value));
    let elevator = ElevatorType::named(value.split(',').next().unwrap_or_default());
    let tunables = elevator.map_or(&[][..], |elevator| elevator.tunables);
    tunables
        .iter()
        .map(|tunable| Candidate::new(format!("{before},{}=", tunable.name), tunable.about))
        .collect()
}

#[cfg(feature = "lab")]
mod lab {
    use blockyard::tune::PRESETS;
    use blockyard_engine::elevator::ELEVATORS;
    use blockyard_lab::Experiment;
    use blockyard_lab::builtin::{self, BUILTIN, TEMPLATE};

    use super::Candidate;

    pub(super) fn experiments() -> Vec<Candidate> {
        let titled = |name| builtin::load(name).map(|experiment| experiment.title);
        let all = BUILTIN.iter().map(|builtin| builtin.name);
        all.map(|name| Candidate::new(name, titled(name).unwrap_or_default())).collect()
    }

    pub(super) fn variants(experiment: &str) -> Vec<Candidate> {
        let Ok(experiment) = builtin::load(experiment) else { return Vec::new() };
        let variants = experiment.variants.iter();
        variants.map(|variant| Candidate::new(variant.name.as_str(), "")).collect()
    }

    /// `PATH=` of the experiment and of the template; behind `queue.elevator=` the elevators. The
    /// settings of `lab compare` are a list with semicolons.
    pub(super) fn settings(experiment: Option<&str>, value: &str) -> Vec<Candidate> {
        let (before, last) = value.rfind(';').map_or(("", value), |at| value.split_at(at + 1));
        if let Some((path, _)) = last.split_once('=') {
            let elevators = ELEVATORS.iter().filter(|_| path == "queue.elevator");
            return elevators
                .map(|elevator| {
                    Candidate::new(format!("{before}{path}={}", elevator.name), elevator.about)
                })
                .collect();
        }
        let named = experiment.and_then(|name| builtin::load(name).ok());
        let template = Experiment::parse("template", TEMPLATE, None).ok();
        // Jobs of the template are no jobs of the experiment.
        let general = template.iter().flat_map(Experiment::settings);
        let general = general.filter(|(path, _)| !path.starts_with("jobs."));
        let mut paths: Vec<_> = named.iter().flat_map(Experiment::settings).collect();
        paths.extend(general);
        paths.sort_by(|one, other| one.0.cmp(&other.0));
        paths.dedup_by(|one, other| one.0 == other.0);
        let candidate =
            |(path, now): (String, String)| Candidate::new(format!("{before}{path}="), now);
        paths.into_iter().map(candidate).collect()
    }

    pub(super) fn workloads() -> Vec<Candidate> {
        PRESETS.iter().map(|preset| Candidate::new(preset.name, preset.about)).collect()
    }
}

#[cfg(test)]
mod tests {
    use blockyard_crypt::cipher::CipherSpec;

    use super::*;

    #[test]
    fn offered_ciphers_are_supported() {
        for cipher in CIPHERS {
            assert!(CipherSpec::parse(cipher).is_ok(), "{cipher}");
        }
    }
}
