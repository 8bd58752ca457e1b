//! The arguments of a multipath line, as text and as a value (`multipath_ctr`).
//!
//! ```text
//! <#features> [<feature>...]  <#handler args>  <#groups> <initial group>
//!     { <selector> <#selector args> [<arg>...]
//!       <#paths> <#path args> { <device> [<arg>...] }... }...
//! ```
//! Features: `queue_if_no_path`, `retain_attached_hw_handler`, `pg_init_retries <1-50>`,
//! `pg_init_delay_msecs <0-60000>`, `queue_mode <bio|rq|mq>`. Groups count from one; the initial
//! group is 0 only if there are no groups. Arguments that the kernel accepts without effect are
//! refused: hardware handlers, surplus arguments of a selector.
//!
//! The text of a value is the kernel's `STATUSTYPE_TABLE`, which has a space after each word,
//! including the last.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::io_affinity::{self, CpuMask};
use super::selector::SelectorSpec;
use super::target::MultipathTargetSpec;
use crate::bio::Sector;
use crate::dm::registry::{Arguments, DeviceNeed, Keys, Needs, Opened, TargetType, Use};
use crate::dm::table::TargetSpec;
use crate::dm::words::{number, shown};

/// Kernel limit: words after the number of features.
const FEATURE_WORDS_MAX: u64 = 8;
/// Kernel limit: groups, and arguments of a selector or a path.
const COUNT_MAX: u64 = 1024;
/// Greatest number of paths of all groups. Our choice; the kernel allows this number in each group.
pub const PATHS_MAX: usize = 1024;

/// The target's type.
pub static MULTIPATH: TargetType = TargetType {
    name: "multipath",
    arguments: "<#features> [<feature>...] 0 <#groups> <initial group> <group>...",
    parse: |args, _| Ok(Arc::new(parse(args)?)),
};

/// Level at which paths are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueMode {
    /// `bio`: for each bio.
    Bio,
    /// `rq`, `mq`, or the default: for each request of a queue above.
    Request,
}

/// Arguments of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultipathSpec {
    /// Whether I/O waits while no path is live.
    pub queue_if_no_path: bool,
    /// Hardware handler setting without effect; zero if absent.
    pub pg_init_retries: u32,
    /// Hardware handler setting without effect.
    pub pg_init_delay_msecs: Option<u32>,
    /// Hardware handler setting without effect.
    pub retain_attached_hw_handler: bool,
    /// Level at which paths are chosen.
    pub queue_mode: QueueMode,
    /// Initial group, counted from one; zero if there is none.
    pub init_group: u16,
    /// Groups in the order of their priority.
    pub groups: Vec<GroupSpec>,
}

/// Paths of one priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Path selector.
    pub selector: SelectorSpec,
    /// Paths, at least one.
    pub paths: Vec<PathSpec>,
}

/// A path. Arguments that the group's selector lacks have the defaults of [`PathSpec::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// Path of the device or file, or another name that the world can open.
    pub device: String,
    /// Kept for the text only.
    pub repeat_count: u32,
    /// Argument of `service-time`: 0 to 100.
    pub relative_throughput: u32,
    /// Argument of `io-affinity`.
    pub cpus: CpuMask,
}

impl PathSpec {
    /// A path with default arguments.
    #[must_use]
    pub fn new(device: &str) -> Self {
        let cpus = CpuMask::default();
        Self { device: device.into(), repeat_count: 1, relative_throughput: 1, cpus }
    }
}

impl Arguments for MultipathSpec {
    /// With a trailing space, as in the kernel.
    fn write(&self, _: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, " {self}")
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        let start = Sector(0);
        let using = Use::Path(self.queue_mode);
        let paths = self.paths().map(|path| &*path.device);
        let devices = paths.map(|path| DeviceNeed { path, start, len, using }).collect();
        let queue = self.queue_mode == QueueMode::Request;
        Needs { devices, queue, ..Needs::default() }
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        if opened.devs.is_empty() {
            return Err(
                "a multipath line has no path, so nothing could be read or written, ever".into()
            );
        }
        let devs = opened.devs;
        let requests = opened.queue;
        Ok(Arc::new(MultipathTargetSpec { multipath: self.clone(), devs, requests }))
    }
}

impl MultipathSpec {
    /// The paths of all groups, in the order of the line.
    pub fn paths(&self) -> impl Iterator<Item = &PathSpec> {
        self.groups.iter().flat_map(|group| &group.paths)
    }

    /// Writes the text with the current values of these two words.
    pub(super) fn write(
        &self,
        queue_if_no_path: bool,
        group: usize,
        f: &mut dyn fmt::Write,
    ) -> fmt::Result {
        let has_delay = self.pg_init_delay_msecs.is_some();
        let words = [
            (queue_if_no_path, 1),
            (self.pg_init_retries > 0, 2),
            (has_delay, 2),
            (self.retain_attached_hw_handler, 1),
            (self.queue_mode == QueueMode::Bio, 2),
        ];
        let count: u32 = words.iter().map(|(said, words)| u32::from(*said) * words).sum();
        write!(f, "{count} ")?;
        if queue_if_no_path {
            f.write_str("queue_if_no_path ")?;
        }
        if self.pg_init_retries > 0 {
            write!(f, "pg_init_retries {} ", self.pg_init_retries)?;
        }
        if let Some(delay) = self.pg_init_delay_msecs {
            write!(f, "pg_init_delay_msecs {delay} ")?;
        }
        if self.retain_attached_hw_handler {
            f.write_str("retain_attached_hw_handler ")?;
        }
        if self.queue_mode == QueueMode::Bio {
            f.write_str("queue_mode bio ")?;
        }
        write!(f, "0 {} {group} ", self.groups.len())?;
        self.groups.iter().try_for_each(|group| group.write(f))
    }
}

impl GroupSpec {
    fn write(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        write!(f, "{} ", self.selector.name())?;
        self.selector.args(f)?;
        write!(f, "{} {} ", self.paths.len(), self.selector.table_args())?;
        for path in &self.paths {
            write!(f, "{} ", path.device)?;
            self.selector.path_args(path, f)?;
        }
        Ok(())
    }
}

impl fmt::Display for MultipathSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(self.queue_if_no_path, self.init_group.into(), f)
    }
}

/// The remaining words of a line.
struct Words<'a>(&'a [&'a str]);

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        let Some((first, rest)) = self.0.split_first() else {
            return Err(format!("the line ends where {what} is expected"));
        };
        self.0 = rest;
        Ok(first)
    }

    fn number(&mut self, what: &str, min: u64, max: u64) -> Result<u64, String> {
        match number(self.next(what)?, what)? {
            value if (min..=max).contains(&value) => Ok(value),
            value => Err(format!("{what} {value} is not one of {min} to {max}")),
        }
    }

    /// Takes `count` words.
    fn take(&mut self, count: u64, what: &str) -> Result<&'a [&'a str], String> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let Some((taken, rest)) = self.0.split_at_checked(count) else {
            return Err(format!(
                "{count} words of {what} are announced, but {} are left",
                self.0.len()
            ));
        };
        self.0 = rest;
        Ok(taken)
    }
}

/// Parses the arguments of a line.
///
/// # Errors
/// The first wrong word.
pub fn parse(args: &[&str]) -> Result<MultipathSpec, String> {
    let mut words = Words(args);
    let mut spec = parse_features(&mut words)?;
    let handler_words = words.number("number of hardware handler words", 0, COUNT_MAX)?;
    if let [handler, ..] = words.take(handler_words, "the hardware handler")? {
        return Err(format!(
            "hardware handler `{}` is not supported: paths are files and connections, which need \
             no command to be activated; the number of hardware handler words must be 0",
            shown(handler)
        ));
    }
    let groups = words.number("number of priority groups", 0, COUNT_MAX)?;
    let least = u64::from(groups > 0);
    let init = words.number("initial priority group", least, groups)?;
    spec.init_group = u16::try_from(init).expect("at most 1024");
    let mut paths = 0;
    for group in 1..=groups {
        let parsed = parse_group(&mut words, &mut paths);
        spec.groups.push(parsed.map_err(|problem| format!("priority group {group}: {problem}"))?);
    }
    match words.0 {
        [] => Ok(spec),
        [word, ..] => Err(format!(
            "`{}` follows after {groups} priority groups, which is their announced number",
            shown(word)
        )),
    }
}

fn parse_features(words: &mut Words<'_>) -> Result<MultipathSpec, String> {
    let mut spec = MultipathSpec {
        queue_if_no_path: false,
        pg_init_retries: 0,
        pg_init_delay_msecs: None,
        retain_attached_hw_handler: false,
        queue_mode: QueueMode::Request,
        init_group: 0,
        groups: Vec::new(),
    };
    let count = words.number("number of feature words", 0, FEATURE_WORDS_MAX)?;
    let mut features = Words(words.take(count, "features")?);
    while !features.0.is_empty() {
        let word = features.next("a feature")?;
        let value_of = |what: &str| format!("the value of feature {what}");
        match word.to_ascii_lowercase().as_str() {
            "queue_if_no_path" => spec.queue_if_no_path = true,
            "retain_attached_hw_handler" => spec.retain_attached_hw_handler = true,
            name @ "pg_init_retries" => {
                spec.pg_init_retries = features.number(&value_of(name), 1, 50)? as u32;
            }
            name @ "pg_init_delay_msecs" => {
                let delay = features.number(&value_of(name), 0, 60_000)?;
                spec.pg_init_delay_msecs = Some(delay as u32);
            }
            name @ "queue_mode" => {
                spec.queue_mode = parse_queue_mode(features.next(&value_of(name))?)?;
            }
            _ => {
                return Err(format!(
                    "feature `{}` is unknown; there are queue_if_no_path, \
                     retain_attached_hw_handler, pg_init_retries, pg_init_delay_msecs and \
                     queue_mode",
                    shown(word)
                ));
            }
        }
    }
    Ok(spec)
}

fn parse_queue_mode(word: &str) -> Result<QueueMode, String> {
    match word.to_ascii_lowercase().as_str() {
        "bio" => Ok(QueueMode::Bio),
        "rq" | "mq" => Ok(QueueMode::Request),
        _ => Err(format!("queue_mode `{}` is none of bio, rq and mq", shown(word))),
    }
}

fn parse_group(words: &mut Words<'_>, paths_before: &mut usize) -> Result<GroupSpec, String> {
    let name = words.next("the path selector")?;
    let args = words.number("number of selector arguments", 0, COUNT_MAX)?;
    let selector = SelectorSpec::parse(name, words.take(args, "selector arguments")?)?;
    let count = words.number("number of paths", 1, COUNT_MAX)?;
    let args = words.number("number of path arguments", 0, COUNT_MAX)?;
    let path_words = words.take(count * (1 + args), "paths")?;
    *paths_before += usize::try_from(count).expect("at most 1024");
    if *paths_before > PATHS_MAX {
        return Err(format!("there are more than {PATHS_MAX} paths"));
    }
    let chunk = usize::try_from(1 + args).expect("at most 1025");
    let paths = path_words.chunks_exact(chunk).map(|words| {
        let parsed = selector.parse_path(words[0], &words[1..]);
        parsed.map_err(|problem| format!("path `{}`: {problem}", shown(words[0])))
    });
    let paths = paths.collect::<Result<Vec<_>, _>>()?;
    if selector == SelectorSpec::IoAffinity {
        io_affinity::check(&paths)?;
    }
    Ok(GroupSpec { selector, paths })
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<MultipathSpec, String> {
        parse(&text.split_ascii_whitespace().collect::<Vec<_>>())
    }

    fn problem(text: &str) -> String {
        parsed(text).unwrap_err()
    }

    #[test]
    fn line_of_two_groups_is_parsed() {
        let spec = parsed(
            "3 queue_if_no_path queue_mode bio 0 2 2 service-time 0 2 2 /a 1 10 nbd://h:1/x 1 1 \
             round-robin 0 1 0 /c",
        );
        let spec = spec.unwrap();
        assert!(spec.queue_if_no_path && spec.queue_mode == QueueMode::Bio);
        assert_eq!((spec.init_group, spec.groups.len()), (2, 2));
        let fast = PathSpec { relative_throughput: 10, ..PathSpec::new("/a") };
        assert_eq!(spec.groups[0].paths, [fast, PathSpec::new("nbd://h:1/x")]);
        assert_eq!(spec.groups[1].selector, SelectorSpec::RoundRobin);
        assert_eq!(spec.paths().count(), 3);
    }

    #[test]
    fn text_is_the_kernels() {
        for (line, text) in [
            ("0 0 0 0", "0 0 0 0 "),
            (
                "1 QUEUE_IF_NO_PATH 0 1 1 round-robin 0 1 1 8:16 1000",
                "1 queue_if_no_path 0 1 1 round-robin 0 1 1 8:16 1 ",
            ),
            (
                "8 queue_mode mq retain_attached_hw_handler pg_init_delay_msecs 0 pg_init_retries \
                 50 queue_if_no_path 0 1 1 queue-length 0 2 1 /a 0 /b 1",
                "6 queue_if_no_path pg_init_retries 50 pg_init_delay_msecs 0 \
                 retain_attached_hw_handler 0 1 1 queue-length 0 2 1 /a 0 /b 1 ",
            ),
            (
                "2 queue_mode bio 0 1 1 service-time 0 2 0 /a /b",
                "2 queue_mode bio 0 1 1 service-time 0 2 2 /a 1 1 /b 1 1 ",
            ),
            (
                "0 0 2 1 historical-service-time 0 1 1 /a 7 historical-service-time 2 0 5 1 0 /b",
                "0 0 2 1 historical-service-time 2 972 0 1 1 /a 0 historical-service-time 2 0 5 \
                 1 1 /b 0 ",
            ),
            ("0 0 1 1 io-affinity 0 1 1 /a 00F", "0 0 1 1 io-affinity 0 1 1 /a f "),
        ] {
            assert_eq!(parsed(line).unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_arguments_name_what_is_wrong() {
        for (line, expected) in [
            ("", "the line ends where number of feature words is expected"),
            ("x", "number of feature words `x` is not a number"),
            ("9", "number of feature words 9 is not one of 0 to 8"),
            ("2 queue_if_no_path", "2 words of features are announced, but 1 are left"),
            ("1 fast 0 0 0", "feature `fast` is unknown; there are queue_if_no_path"),
            ("1 pg_init_retries 0 0 0", "ends where the value of feature pg_init_retries"),
            ("2 pg_init_retries 51 0", "pg_init_retries 51 is not one of 1 to 50"),
            ("2 pg_init_delay_msecs 60001", "60001 is not one of 0 to 60000"),
            ("2 queue_mode nvme 0", "queue_mode `nvme` is none of bio, rq and mq"),
            ("0 1 alua 0 0", "hardware handler `alua` is not supported: paths are files"),
            ("0 0 1025", "number of priority groups 1025 is not one of 0 to 1024"),
            ("0 0 0 1", "initial priority group 1 is not one of 0 to 0"),
            ("0 0 1 0", "initial priority group 0 is not one of 1 to 1"),
            ("0 0 1 2", "initial priority group 2 is not one of 1 to 1"),
            ("0 0 1 1", "priority group 1: the line ends where the path selector is expected"),
            ("0 0 1 1 fastest 0 1 0 /a", "priority group 1: path selector `fastest` is unknown"),
            ("0 0 1 1 round-robin 1 9 1 0 /a", "round-robin takes no arguments, but 1 follow"),
            ("0 0 1 1 round-robin 0 0 0", "number of paths 0 is not one of 1 to 1024"),
            ("0 0 1 1 round-robin 0 1024 1024 /a", "1049600 words of paths are announced"),
            ("0 0 1 1 round-robin 0 1 2 /a 1 1", "path `/a`: a path of round-robin takes `[<rep"),
            ("0 0 1 1 queue-length 0 1 1 /a x", "path `/a`: repeat count `x` is not a number"),
            ("0 0 1 1 service-time 0 1 2 /a 1 101", "throughput 101 is not one of 0 to 100"),
            ("0 0 1 1 service-time 0 1 3 /a 1 1 1", "a path of service-time takes"),
            ("0 0 1 1 historical-service-time 1 1024 1 0 /a", "1024 is not one of 0 to 1023"),
            ("0 0 1 1 historical-service-time 3 1 1 1 1 0 /a", "but 3 arguments follow"),
            ("0 0 1 1 io-affinity 0 1 0 /a", "a path of io-affinity takes `<CPU mask>`"),
            ("0 0 1 1 io-affinity 0 1 1 /a 0", "CPU mask `0` is not"),
            ("0 0 1 1 io-affinity 0 2 1 /a 3 /b 1", "path `/b` has CPU mask 1, but all"),
            ("0 0 1 1 round-robin 0 1 0 /a /b", "`/b` follows after 1 priority groups"),
        ] {
            assert!(problem(line).contains(expected), "{line}: {}", problem(line));
        }
        let groups = "round-robin 0 600 0".to_string() + &" /a".repeat(600);
        let two = problem(&format!("0 0 2 1 {groups} {groups}"));
        assert!(two.contains("priority group 2: there are more than 1024 paths"), "{two}");
    }

    fn group() -> impl Strategy<Value = String> {
        let path_args = vec![
            ("round-robin 0", "1"),
            ("queue-length 0", "0"),
            ("service-time 0", "1 7"),
            ("historical-service-time 2 3 4", "1"),
            ("historical-service-time 1 1023", "0"),
        ];
        (prop::sample::select(path_args), 1_usize..5).prop_map(|((selector, args), count)| {
            let words = args.split(' ').count();
            let paths: Vec<_> = (0..count).map(|path| format!("/dev/{path} {args}")).collect();
            format!("{selector} {count} {words} {}", paths.join(" "))
        })
    }

    proptest! {
        #[test]
        fn text_of_a_line_says_the_same(
            features in prop::sample::select(vec![
                "0", "1 queue_if_no_path", "4 pg_init_retries 3 queue_mode bio",
                "3 retain_attached_hw_handler pg_init_delay_msecs 60000",
            ]),
            groups in prop::collection::vec(group(), 1..4),
            init in 1_usize..4,
        ) {
            let count = groups.len();
            let init = init.min(groups.len());
            let spec = parsed(&format!("{features} 0 {count} {init} {}", groups.join(" ")));
            let spec = spec.unwrap();
            prop_assert_eq!(parsed(&spec.to_string()).unwrap(), spec);
        }

        #[test]
        fn any_words_are_a_line_or_an_error(words in prop::collection::vec(
            prop::sample::select(vec![
                "0", "1", "2", "3", "8", "1024", "18446744073709551615", "-1", "", "queue_mode",
                "bio", "queue_if_no_path", "round-robin", "service-time", "io-affinity",
                "historical-service-time", "/a", "ff", "\u{0}",
            ]),
            0..20,
        )) {
            if let Err(problem) = parse(&words) {
                prop_assert!(!problem.is_empty());
            }
        }
    }
}
