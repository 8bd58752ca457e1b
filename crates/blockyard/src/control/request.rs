//! Parses requests.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use blockyard_host::dirty_bitmap::BackupStep;
use blockyard_host::table::parse_key;
use blockyard_host::volume::control::{ControlError, Message};

use crate::rate::RateLimits;
use crate::recorder::TraceFile;

/// A request.
#[derive(Debug)]
pub(super) enum Request {
    Status,
    Suspend,
    /// Whether a loss is accepted.
    Resume(bool),
    /// A message for the table line at a sector.
    Message(u64, Message),
    /// Follow the file and the header.
    Resize,
    /// Limit the rate of an export; whether its burst stays.
    Limit(RateLimits, bool),
    /// A step of a backup.
    Backup(BackupStep),
    TraceStart(TraceFile),
    TraceStop,
    Reload,
    /// Close an export that opens at its next use.
    Forget,
}

pub(super) fn invalid(problem: impl Into<String>) -> ControlError {
    ControlError { name: "EINVAL", problem: problem.into() }
}

/// Ends of the first word, and of the blank behind it.
fn next(text: &str) -> (usize, usize) {
    let end = text.find(' ').unwrap_or(text.len());
    (end, (end + 1).min(text.len()))
}

/// Parses a line; returns the request and its export. Errors never quote the line.
pub(super) fn parse(line: &[u8]) -> Result<(Request, &str), ControlError> {
    let line = std::str::from_utf8(line).map_err(|_| invalid("the line is not UTF-8"))?;
    let (end, rest) = next(line);
    let command = &line[..end];
    let rest = &line[rest..];
    let sector_of =
        |text: &str| text.parse().map_err(|_| invalid("the sector is not a number below 2^64"));
    match command {
        "status" => Ok((Request::Status, rest)),
        "suspend" => Ok((Request::Suspend, rest)),
        "resume" => Ok((Request::Resume(false), rest)),
        "resume-accepting-loss" => Ok((Request::Resume(true), rest)),
        "message" => {
            let (end, count) = next(rest);
            let sector = sector_of(&rest[..end])?;
            let rest = &rest[count..];
            let (end, words) = next(rest);
            let count: usize = rest[..end].parse().map_err(|_| invalid("COUNT is no number"))?;
            let words = &rest[words..];
            let mut at = 0;
            for _ in 0..count {
                if at == words.len() {
                    return Err(invalid("the message has fewer words than it says"));
                }
                at += next(&words[at..]).1;
            }
            let text = words[..at].trim_end().to_owned();
            Ok((Request::Message(sector, Message::Target(text)), &words[at..]))
        }
        "resize" => Ok((Request::Resize, rest)),
        "limit" => {
            let (limits, keeps_burst, export) = rate_limits(rest)?;
            Ok((Request::Limit(limits, keeps_burst), export))
        }
        "backup" => {
            let (step, export) = backup_step(rest)?;
            Ok((Request::Backup(step), export))
        }
        "reload" => Ok((Request::Reload, rest)),
        "forget" => Ok((Request::Forget, rest)),
        "trace-stop" => Ok((Request::TraceStop, rest)),
        "trace-start" => {
            let (to, export) = trace_file(rest)?;
            Ok((Request::TraceStart(to), export))
        }
        "key-wipe" => {
            let (end, export) = next(rest);
            Ok((Request::Message(sector_of(&rest[..end])?, Message::KeyWipe), &rest[export..]))
        }
        "key-set" => {
            let (end, key) = next(rest);
            let sector = sector_of(&rest[..end])?;
            let rest = &rest[key..];
            let (end, export) = next(rest);
            let key = parse_key(&rest[..end]).map_err(invalid)?;
            Ok((Request::Message(sector, Message::KeySet(key)), &rest[export..]))
        }
        _ => {
            let known = "status, suspend, resume, resume-accepting-loss, resize, limit, backup, \
                         message, key-set, key-wipe, trace-start, trace-stop, reload and forget";
            Err(invalid(format!("the line is none of {known}")))
        }
    }
}

/// Parses a step of a backup and the export.
fn backup_step(text: &str) -> Result<(BackupStep, &str), ControlError> {
    let (end, rest) = next(text);
    let name = &text[..end];
    let mut export = &text[rest..];
    let mut id = None;
    if name != "freeze" {
        let (end, rest) = next(export);
        id = Some(export[..end].parse().map_err(invalid)?);
        export = &export[rest..];
    }
    let step = BackupStep::named(name, id);
    let known = "a backup has freeze, done ID and failed ID";
    step.map(|step| (step, export)).ok_or_else(|| invalid(known))
}

/// Parses limits of a rate and the export.
fn rate_limits(text: &str) -> Result<(RateLimits, bool, &str), ControlError> {
    let wrong = || invalid("the line is not limit IOPS BYTES BURST-NS EXPORT, with numbers");
    let mut words = text.splitn(4, ' ');
    let mut word = || words.next().ok_or_else(wrong);
    let number = |word: &str| word.parse().map_err(|_| wrong());
    let iops = NonZeroU64::new(number(word()?)?);
    let bytes_per_s = NonZeroU64::new(number(word()?)?);
    let burst = word()?;
    let keeps_burst = burst == "-";
    let burst_ns = if keeps_burst { 0 } else { number(burst)? };
    let limits = RateLimits { iops, bytes_per_s, burst: Duration::from_nanos(burst_ns) };
    Ok((limits, keeps_burst, words.next().unwrap_or_default()))
}

/// Parses the file of a trace and the export; the path has the given length in bytes.
fn trace_file(text: &str) -> Result<(TraceFile, &str), ControlError> {
    let wrong =
        || invalid("the line is not trace-start MILLISECONDS new|replace BYTES PATH EXPORT");
    let mut words = text.splitn(4, ' ');
    let mut word = || words.next().ok_or_else(wrong);
    let limit_ms: u64 = word()?.parse().map_err(|_| wrong())?;
    let replace = match word()? {
        "new" => false,
        "replace" => true,
        _ => return Err(wrong()),
    };
    let path_bytes: usize = word()?.parse().map_err(|_| wrong())?;
    let rest = word()?;
    let (path, export) = rest.split_at_checked(path_bytes).ok_or_else(wrong)?;
    let limit = (limit_ms > 0).then(|| Duration::from_millis(limit_ms));
    let to = TraceFile { path: PathBuf::from(path), replace, limit };
    Ok((to, export.strip_prefix(' ').unwrap_or(export)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        match parse(line.as_bytes()) {
            Ok((Request::Message(sector, Message::KeySet(key)), export)) => {
                format!("set {sector} {:?} {export:?}", key.as_slice())
            }
            Ok((Request::Message(sector, Message::KeyWipe), export)) => {
                format!("wipe {sector} {export:?}")
            }
            Ok((Request::Message(sector, Message::Target(text)), export)) => {
                format!("tell {sector} {text:?} {export:?}")
            }
            Ok((request, export)) => format!("{request:?} {export:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn every_command_is_a_request() {
        for (line, meaning) in [
            ("status", "Status \"\""),
            ("suspend", "Suspend \"\""),
            ("suspend ", "Suspend \"\""),
            ("suspend my disk", "Suspend \"my disk\""),
            ("resize my disk", "Resize \"my disk\""),
            ("resume  a", "Resume(false) \" a\""),
            ("resume-accepting-loss my disk", "Resume(true) \"my disk\""),
            ("key-wipe 8", "wipe 8 \"\""),
            ("key-wipe 8 a b", "wipe 8 \"a b\""),
            ("key-set 0 00fF", "set 0 [0, 255] \"\""),
            ("key-set 0 00ff my disk", "set 0 [0, 255] \"my disk\""),
            ("key-set 0 - x", "set 0 [] \"x\""),
            ("key-set 0", "set 0 [] \"\""),
            ("message 0 1 queue_if_no_path", "tell 0 \"queue_if_no_path\" \"\""),
            (
                "trace-start 0 new 6 /a b/c my disk",
                "TraceStart(TraceFile { path: \"/a b/c\", replace: false, limit: None }) \
                 \"my disk\"",
            ),
            (
                "limit 100 0 5000 my disk",
                "Limit(RateLimits { iops: Some(100), bytes_per_s: None, burst: 5µs }, false) \
                 \"my disk\"",
            ),
            (
                "limit 0 7 -",
                "Limit(RateLimits { iops: None, bytes_per_s: Some(7), burst: 0ns }, true) \"\"",
            ),
            ("backup freeze my disk", "Backup(Freeze) \"my disk\""),
            ("backup done 00000000000000ff", "Backup(Done(BackupId(255))) \"\""),
            ("backup failed 00000000000000ff my disk", "Backup(Failed(BackupId(255))) \"my disk\""),
            ("trace-stop my disk", "TraceStop \"my disk\""),
            ("reload", "Reload \"\""),
            ("forget a b", "Forget \"a b\""),
            ("message 8 2 fail_path /a my disk", "tell 8 \"fail_path /a\" \"my disk\""),
        ] {
            assert_eq!(shown(line), meaning, "{line}");
        }
    }

    #[test]
    fn another_line_is_an_error_that_quotes_nothing() {
        for (line, word) in [
            ("", "none of status"),
            ("sesame", "none of status"),
            ("Status", "none of status"),
            ("key-wipe", "sector"),
            ("key-wipe x", "sector"),
            ("key-wipe 18446744073709551616", "sector"),
            ("key-set -1 sesame", "sector"),
            ("message x 1 sesame", "sector"),
            ("message 0 sesame", "COUNT"),
            ("message 0 2 sesame", "fewer words"),
            ("limit 1 sesame 3", "limit IOPS"),
            ("limit 1 -2 3", "limit IOPS"),
            ("limit", "limit IOPS"),
            ("backup sesame", "hexadecimal"),
            ("backup sesame 00000000000000ff", "done ID"),
            ("backup done", "hexadecimal"),
            ("backup done 0xff", "hexadecimal"),
            ("backup", "hexadecimal"),
            ("trace-start 0 new 99 /sesame", "trace-start MILLISECONDS"),
            ("trace-start 0 old 2 /s ", "trace-start MILLISECONDS"),
            ("trace-start", "trace-start MILLISECONDS"),
            ("key-set 0 sesame", "hex"),
            ("key-set 0 sesam3", "hex"),
            ("key-set 0 :32:logon:sesame", "keyring"),
        ] {
            let said = shown(line);
            assert!(said.starts_with("EINVAL: ") && said.contains(word), "{line}: {said}");
            assert!(!said.contains("sesam"), "{said}");
        }
        let bytes = parse(&[b'k', 0xff, b'\r']).unwrap_err().to_string();
        assert!(bytes.contains("UTF-8"), "{bytes}");
    }
}
