//! Pipelines as text: the name of a preset, or the fields, `place=same,submit=thread,sort=off`.
//!
//! ```text
//!   place=inline|same|any      of the cipher, for reads and writes; read=, write= for one of them
//!   submit=encrypting|thread   who submits encrypted writes
//!   sort=on|off                order of the thread's batches
//!   context=task|client        io-context of encrypted writes
//!   max_read_bytes=N, max_write_bytes=N   longest part
//! ```
//!
//! A missing field is that of preset `A`: `place=same,submit=encrypting,context=task`, without
//! limits.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use thiserror::Error;

use super::pipeline::{Context, Order, PRESETS, Pipeline, Submit, find};
use crate::sq::Place;

/// Length limits of a part in bytes, in steps of a sector of 512 bytes.
const PART_BYTES: core::ops::RangeInclusive<u32> = 4096..=1 << 30;

const PLACES: [(&str, Place); 3] =
    [("inline", Place::Inline), ("same", Place::SameCpu), ("any", Place::Unbound)];
const CONTEXTS: [(&str, Context); 2] = [("task", Context::Task), ("client", Context::Submitter)];

/// Not a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct PipelineError(String);

impl Pipeline {
    /// Parses the name of a preset, or fields.
    ///
    /// # Errors
    /// The text is neither; the error names the valid names or values.
    pub fn parse(text: &str) -> Result<Self, PipelineError> {
        if let Some(preset) = find(text) {
            return Ok(preset.pipeline);
        }
        if !text.contains('=') {
            let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            return Err(PipelineError(format!(
                "{text:?} is no pipeline; pipelines are {}, or fields as in \
                 place=same,submit=thread,sort=off",
                names.join(", ")
            )));
        }
        from_fields(text)
    }

    /// Name of the first preset that is this pipeline.
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        let preset = PRESETS.iter().find(|preset| preset.pipeline == *self);
        preset.map(|preset| preset.name)
    }
}

fn from_fields(text: &str) -> Result<Pipeline, PipelineError> {
    let mut pipeline = find("A").expect("it is a preset").pipeline;
    let mut sorts = None;
    let mut given: Vec<&str> = Vec::new();
    for word in text.split(',') {
        let (key, value) = word.split_once('=').ok_or_else(|| {
            PipelineError(format!("{word:?} is not of the form key=value, as in place=same"))
        })?;
        if given.contains(&key) {
            return Err(PipelineError(format!("{key} is given twice")));
        }
        given.push(key);
        match key {
            "place" => {
                pipeline.read = one_of(key, value, &PLACES)?;
                pipeline.write = pipeline.read;
            }
            "read" => pipeline.read = one_of(key, value, &PLACES)?,
            "write" => pipeline.write = one_of(key, value, &PLACES)?,
            "submit" => {
                let choices = [
                    ("encrypting", Submit::WhereEncrypted),
                    ("thread", Submit::Thread(Order::Fifo)),
                ];
                pipeline.submit = one_of(key, value, &choices)?;
            }
            "sort" => sorts = Some(one_of(key, value, &[("on", true), ("off", false)])?),
            "context" => pipeline.context = one_of(key, value, &CONTEXTS)?,
            "max_read_bytes" => pipeline.max_read_bytes = Some(part(key, value)?),
            "max_write_bytes" => pipeline.max_write_bytes = Some(part(key, value)?),
            _ => {
                return Err(PipelineError(format!(
                    "{key:?} is no field of a pipeline; fields are place, read, write, submit, \
                     sort, context, max_read_bytes, max_write_bytes"
                )));
            }
        }
    }
    if given.contains(&"place") && (given.contains(&"read") || given.contains(&"write")) {
        return Err(PipelineError("place stands for read and write; give it or them".into()));
    }
    match (&mut pipeline.submit, sorts) {
        (Submit::Thread(order), Some(true)) => *order = Order::Sorted,
        (Submit::WhereEncrypted, Some(_)) => {
            return Err(PipelineError("sort needs submit=thread".into()));
        }
        _ => {}
    }
    Ok(pipeline)
}

fn one_of<T: Copy>(key: &str, value: &str, choices: &[(&str, T)]) -> Result<T, PipelineError> {
    let found = choices.iter().find(|(name, _)| *name == value);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        PipelineError(format!("{key} is {value:?}; it takes {}", names.join(", ")))
    })
}

fn part(key: &str, value: &str) -> Result<u32, PipelineError> {
    let valid = |bytes: &u32| PART_BYTES.contains(bytes) && bytes.is_multiple_of(512);
    value.parse().ok().filter(valid).ok_or_else(|| {
        PipelineError(format!(
            "{key} is {value:?}; it takes a multiple of 512 from {} to {}",
            PART_BYTES.start(),
            PART_BYTES.end()
        ))
    })
}

fn name_of<T: Copy + PartialEq>(choices: &[(&'static str, T)], value: T) -> &'static str {
    let found = choices.iter().find(|(_, choice)| *choice == value);
    found.expect("every value has a name").0
}

/// All fields, in the form that [`Pipeline::parse`] takes.
impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read = name_of(&PLACES, self.read);
        let write = name_of(&PLACES, self.write);
        if read == write {
            write!(f, "place={read}")?;
        } else {
            write!(f, "read={read},write={write}")?;
        }
        f.write_str(match self.submit {
            Submit::WhereEncrypted => ",submit=encrypting",
            Submit::Thread(Order::Fifo) => ",submit=thread,sort=off",
            Submit::Thread(Order::Sorted) => ",submit=thread,sort=on",
        })?;
        write!(f, ",context={}", name_of(&CONTEXTS, self.context))?;
        let limits =
            [("max_read_bytes", self.max_read_bytes), ("max_write_bytes", self.max_write_bytes)];
        for (key, limit) in limits {
            if let Some(limit) = limit {
                write!(f, ",{key}={limit}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn every_pipeline_is_printed_and_read_back() {
        let submits =
            [Submit::WhereEncrypted, Submit::Thread(Order::Fifo), Submit::Thread(Order::Sorted)];
        for (_, read) in PLACES {
            for (_, write) in PLACES {
                for submit in submits {
                    for (_, context) in CONTEXTS {
                        for limit in [None, Some(4096), Some(131_072)] {
                            let pipeline = Pipeline {
                                read,
                                write,
                                submit,
                                context,
                                max_read_bytes: limit,
                                max_write_bytes: limit.map(|bytes| bytes + 512),
                            };
                            let text = pipeline.to_string();
                            assert_eq!(Pipeline::parse(&text), Ok(pipeline), "{text}");
                        }
                    }
                }
            }
        }
        for preset in PRESETS {
            assert_eq!(Pipeline::parse(preset.name), Ok(preset.pipeline));
        }
    }

    #[test]
    fn fields_are_those_of_the_presets() {
        for (text, name) in [
            ("place=same", "A"),
            ("place=any,submit=thread,sort=off", "F"),
            ("sort=on,submit=thread,place=any", "G"),
            ("place=any,context=client", "2013-reply"),
            ("read=inline,write=inline", "inline"),
        ] {
            assert_eq!(Pipeline::parse(text), Ok(find(name).unwrap().pipeline), "{text}");
        }
        assert_eq!(find("D").unwrap().pipeline.name(), Some("A"));
    }

    #[test]
    fn wrong_fields_are_refused_with_the_valid_ones() {
        for (text, says) in [
            ("H", "linux-today"),
            ("", "place=same,submit=thread"),
            ("place=here", "inline, same, any"),
            ("place=any,", "key=value"),
            ("place=any,place=same", "twice"),
            ("place=any,read=same", "stands for read and write"),
            ("threads=2", "max_write_bytes"),
            ("sort=on", "submit=thread"),
            ("submit=thread,sort=yes", "on, off"),
            ("max_read_bytes=100", "multiple of 512"),
            ("max_read_bytes=4294967296", "multiple of 512"),
        ] {
            let said = Pipeline::parse(text).unwrap_err().to_string();
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}
