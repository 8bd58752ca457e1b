//! The control socket of `blockyard serve`: what is asked, and the answer.
//!
//! ```text
//!   status                                 {"max_connections": 16, "io_uring": "restricted",
//!                                           "devices": [...]}
//!   suspend EXPORT                         {}
//!   resume EXPORT                          {"loss": null}
//!   resume-accepting-loss EXPORT           {"loss": null}
//!   key-wipe SECTOR EXPORT                 {"error": {"name": "EINVAL", "problem": "..."}}
//!   key-set SECTOR HEX-DIGITS EXPORT
//!   message SECTOR COUNT WORD... EXPORT
//!   trace-start MILLISECONDS new|replace BYTES PATH EXPORT
//!   trace-stop EXPORT                      {"bios": 3, "not_ended": 0, "lost": 0, "seconds": 1.5}
//! ```
//! One line, and one JSON document back. EXPORT is the rest of the line, because names may hold
//! blanks; without one it is the only volume that there is. What the kernel refuses is refused with
//! its name for it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use blockyard_engine::dm::crypt::pipeline::Tally;
use blockyard_engine::dm::line::parse_key;
use blockyard_host::durability::Loss;
use blockyard_host::server::{Answer, REQUEST_BYTES_MAX};
use blockyard_host::volume::Volume;
use blockyard_host::volume::control::{AdaptiveStatus, ControlError, Message, Status};
use blockyard_host::{RingKind, ring_kind};
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::output::InUse;
use crate::recorder::{Recorded, Recorder, Wish};
use crate::stages;

/// A volume and the names that clients open it by.
pub(crate) struct Device {
    /// At least one.
    pub(crate) names: Vec<String>,
    /// The volume.
    pub(crate) volume: Arc<Volume>,
    /// The recording of it, if there is one.
    pub(crate) recorder: Arc<Mutex<Option<Recorder>>>,
    /// What no trace may overwrite: all that the server serves.
    in_use: Arc<InUse>,
}

impl Device {
    /// A volume that nobody records.
    pub(crate) fn new(names: Vec<String>, volume: Arc<Volume>, in_use: Arc<InUse>) -> Self {
        Self { names, volume, recorder: Arc::default(), in_use }
    }

    /// Begins a recording. There is one at a time; one that has come to its end by itself makes
    /// room.
    pub(crate) fn record(&self, wish: &Wish) -> Result<(), Failure> {
        let mut recorder = locked(&self.recorder);
        if recorder.as_ref().is_some_and(Recorder::has_ended) {
            *recorder = None;
        }
        *recorder = Some(Recorder::start(&self.volume, &self.names[0], wish, &self.in_use)?);
        Ok(())
    }

    fn stop_trace(&self) -> Result<Value, ControlError> {
        let recorder = locked(&self.recorder).take();
        let recorder = recorder.ok_or_else(|| invalid("the volume is not being recorded"))?;
        let Recorded { bios, not_ended, lost, length } = recorder.stop().map_err(refusal)?;
        let seconds = length.0 as f64 / 1e9;
        Ok(json!({ "bios": bios, "not_ended": not_ended, "lost": lost, "seconds": seconds }))
    }
}

pub(crate) fn locked(recorder: &Mutex<Option<Recorder>>) -> MutexGuard<'_, Option<Recorder>> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refusal(failure: Failure) -> ControlError {
    let name = if failure.exit == Exit::Busy { "EBUSY" } else { "EIO" };
    ControlError { name, problem: failure.message }
}

/// What a line asks.
#[derive(Debug)]
enum Request {
    Status,
    Suspend,
    /// With what was lost taken for lost, or without.
    Resume(bool),
    Message(u64, Message),
    TraceStart(Wish),
    TraceStop,
}

/// Answers for these volumes, of a server that takes so many connections.
pub(crate) fn answers(devices: &Arc<[Device]>, max_connections: usize) -> Answer {
    let devices = Arc::clone(devices);
    Arc::new(move |line| {
        let answer = answer(&devices, max_connections, line);
        let answer = answer.unwrap_or_else(|ControlError { name, problem }| {
            json!({ "error": { "name": name, "problem": problem } })
        });
        answer.to_string().into_bytes()
    })
}

fn answer(
    devices: &[Device],
    max_connections: usize,
    line: Option<&[u8]>,
) -> Result<Value, ControlError> {
    let line = line.ok_or_else(|| {
        invalid(format!("no line of at most {REQUEST_BYTES_MAX} bytes came within 10 s"))
    })?;
    let (request, export) = parse(line)?;
    if matches!(request, Request::Status) {
        let devices: Vec<Value> = devices.iter().map(device_json).collect();
        return Ok(json!({
            "max_connections": max_connections,
            "io_uring": ring_word(ring_kind()),
            "devices": devices,
        }));
    }
    let device = find(devices, export)?;
    let volume = &device.volume;
    match request {
        Request::Status => unreachable!("answered above"),
        Request::Suspend => volume.suspend()?,
        Request::Resume(accept_loss) => {
            let loss = volume.resume(accept_loss)?;
            return Ok(json!({ "loss": loss_json(loss.as_ref()) }));
        }
        Request::Message(sector, message) => volume.message(sector, &message)?,
        Request::TraceStart(wish) => {
            return device.record(&wish).map(|()| json!({})).map_err(refusal);
        }
        Request::TraceStop => return device.stop_trace(),
    }
    Ok(json!({}))
}

/// What rings of this process can do.
fn ring_word(kind: RingKind) -> &'static str {
    match kind {
        RingKind::Restricted => "restricted",
        RingKind::Unrestricted => "unrestricted",
        RingKind::Unavailable => "unavailable",
    }
}

fn invalid(problem: impl Into<String>) -> ControlError {
    ControlError { name: "EINVAL", problem: problem.into() }
}

/// The request of a line, and the export that it is for. Errors never quote the line.
fn parse(line: &[u8]) -> Result<(Request, &str), ControlError> {
    let line = std::str::from_utf8(line).map_err(|_| invalid("the line is not UTF-8"))?;
    let next = |text: &'_ str| -> (usize, usize) {
        let end = text.find(' ').unwrap_or(text.len());
        (end, (end + 1).min(text.len()))
    };
    let (end, rest) = next(line);
    let (command, rest) = (&line[..end], &line[rest..]);
    let sector_of =
        |text: &str| text.parse().map_err(|_| invalid("the sector is not a number below 2^64"));
    match command {
        "status" => Ok((Request::Status, rest)),
        "suspend" => Ok((Request::Suspend, rest)),
        "resume" => Ok((Request::Resume(false), rest)),
        "resume-accepting-loss" => Ok((Request::Resume(true), rest)),
        "message" => {
            let (end, count) = next(rest);
            let (sector, rest) = (sector_of(&rest[..end])?, &rest[count..]);
            let (end, words) = next(rest);
            let count: usize = rest[..end].parse().map_err(|_| invalid("COUNT is no number"))?;
            let (words, mut at) = (&rest[words..], 0);
            for _ in 0..count {
                if at == words.len() {
                    return Err(invalid("the message has fewer words than it says"));
                }
                at += next(&words[at..]).1;
            }
            let text = words[..at].trim_end().to_owned();
            Ok((Request::Message(sector, Message::Multipath(text)), &words[at..]))
        }
        "trace-stop" => Ok((Request::TraceStop, rest)),
        "trace-start" => {
            let (wish, export) = trace_wish(rest)?;
            Ok((Request::TraceStart(wish), export))
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
            let known = "status, suspend, resume, resume-accepting-loss, message, key-set, \
                         key-wipe, trace-start and trace-stop";
            Err(invalid(format!("the line is none of {known}")))
        }
    }
}

/// What is to be recorded, and the export: the path has as many bytes as it says.
fn trace_wish(text: &str) -> Result<(Wish, &str), ControlError> {
    let wrong =
        || invalid("the line is not trace-start MILLISECONDS new|replace BYTES PATH EXPORT");
    let mut words = text.splitn(4, ' ');
    let mut word = || words.next().ok_or_else(wrong);
    let limit_ms: u64 = word()?.parse().map_err(|_| wrong())?;
    let force = match word()? {
        "new" => false,
        "replace" => true,
        _ => return Err(wrong()),
    };
    let path_bytes: usize = word()?.parse().map_err(|_| wrong())?;
    let rest = word()?;
    let (path, export) = rest.split_at_checked(path_bytes).ok_or_else(wrong)?;
    let limit = (limit_ms > 0).then(|| Duration::from_millis(limit_ms));
    let wish = Wish { path: PathBuf::from(path), force, limit };
    Ok((wish, export.strip_prefix(' ').unwrap_or(export)))
}

fn find<'a>(devices: &'a [Device], export: &str) -> Result<&'a Device, ControlError> {
    let named = devices.iter().find(|device| device.names.iter().any(|name| name == export));
    match (named, devices) {
        (Some(device), _) => Ok(device),
        (None, [only]) if export.is_empty() => Ok(only),
        (None, _) => {
            let name = |device: &Device| format!("{:?}", device.names[0]);
            let names: Vec<_> = devices.iter().map(name).collect();
            let problem = match export {
                "" => "several volumes are served; name one with --export".to_owned(),
                named => format!("there is no export {named:?}"),
            };
            let problem = format!("{problem}; there are {}", names.join(", "));
            Err(ControlError { name: "ENXIO", problem })
        }
    }
}

fn device_json(device: &Device) -> Value {
    let status = device.volume.status();
    let Status { is_suspended, has_keys, table, targets, pipelines, adaptive, loss, .. } = status;
    let (counts, connections) = (status.counts, status.connections);
    let stages = stages::counted(&device.volume, &counts);
    let threads = stages::threads(&device.volume);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let tally = |Tally { parts, bytes }| json!({ "parts": parts, "bytes": bytes });
    let bios = |Tally { parts, bytes }| json!({ "bios": parts, "bytes": bytes });
    let adaptive: Vec<Value> = adaptive.iter().map(adaptive_json).collect();
    let mut json = json!({
        "exports": device.names,
        "state": if is_suspended { "suspended" } else { "active" },
        "key": if has_keys { "valid" } else { "wiped" },
        "loss": loss_json(loss.as_ref()),
        "table": lines(&table),
        "status": lines(&targets),
        "pipelines": pipelines,
        "adaptive": adaptive,
        "ciphers": {
            "inline": tally(counts.decisions.inline),
            "fanned_out": tally(counts.decisions.fanned_out),
            "sorted": tally(counts.decisions.sorted),
        },
        "reads": bios(counts.reads),
        "writes": bios(counts.writes),
        "other_bios": counts.flushes + counts.others.parts,
        "errors": counts.errors.total(),
        "held_bios": counts.held,
        "parked_parts": counts.parked,
        "connections": connections,
        "in_flight": counts.in_flight,
        "requests": stages,
        "threads": threads,
    });
    json["limit"] = stages::limit_json(stages::limit_of(&json, &Value::Null));
    json
}

/// The failure since which flushes and writes fail.
fn loss_json(loss: Option<&Loss>) -> Value {
    let Some(Loss { device, problem, at, status }) = loss else { return Value::Null };
    let since_epoch = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "device": device,
        "problem": problem,
        "at_unix_s": since_epoch.as_secs(),
        "status": status.to_string(),
    })
}

fn adaptive_json(status: &AdaptiveStatus) -> Value {
    let AdaptiveStatus { cipher_ns, part_bytes, hand_over_ns, fan_out_min_bytes, seeks } = *status;
    json!({
        "cipher_ns": cipher_ns,
        "part_bytes": part_bytes,
        "hand_over_ns": hand_over_ns,
        "fan_out_min_bytes": fan_out_min_bytes,
        "seeks": seeks,
    })
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
            Ok((Request::Message(sector, Message::Multipath(text)), export)) => {
                format!("tell {sector} {text:?} {export:?}")
            }
            Ok((request, export)) => format!("{request:?} {export:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn every_line_is_a_request_or_an_error_that_quotes_nothing() {
        for (line, meaning) in [
            ("status", "Status \"\""),
            ("suspend", "Suspend \"\""),
            ("suspend ", "Suspend \"\""),
            ("suspend my disk", "Suspend \"my disk\""),
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
                "TraceStart(Wish { path: \"/a b/c\", force: false, limit: None }) \"my disk\"",
            ),
            ("trace-stop my disk", "TraceStop \"my disk\""),
            ("message 8 2 fail_path /a my disk", "tell 8 \"fail_path /a\" \"my disk\""),
        ] {
            assert_eq!(shown(line), meaning, "{line}");
        }
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

    #[test]
    fn line_that_did_not_come_is_answered_too() {
        let reply = answers(&Vec::new().into(), 1)(None);
        assert!(String::from_utf8(reply).unwrap().contains("16384 bytes"));
    }
}
