//! Options for the order of a volume's I/O, and its priorities.

use blockyard_engine::elevator::{ELEVATORS, ElevatorSpec};
use blockyard_engine::priority::Priority;
use blockyard_host::pages::BounceChoice;
use blockyard_host::volume::{PipelineChoice, Scheduling};
use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Args, Command};

use std::ffi::OsStr;

#[cfg(feature = "lab")]
use crate::failure::Failure;
use crate::scheduling::{Alias, checked_max_sectors, checked_queue_depth};
#[cfg(feature = "lab")]
use blockyard_lab::Override;

/// Order of requests to the disk.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Scheduling")]
pub(crate) struct SchedulingArgs {
    /// Order requests to the disk; `blockyard elevators` lists the tunables
    ///
    /// Example: `--elevator deadline,fifo_batch=8`. An elevator bypasses the page cache. The
    /// default is mq-deadline on a disk that seeks and has no scheduler in the kernel, else none.
    #[arg(long, value_name = "NAME[,TUNABLE=VALUE...]", value_parser = ElevatorParser)]
    elevator: Option<ElevatorSpec>,

    /// Requests at the disk at a time, 1 to 1024 (default 32); with none, per client (128)
    #[arg(long, value_name = "N", value_parser = parse_queue_depth)]
    queue_depth: Option<u32>,

    /// Longest request to the disk, 8 to 65528 sectors of 512 bytes (default 1024)
    ///
    /// A multiple of 8. Limits merging; longer requests of clients are split.
    #[arg(long, value_name = "SECTORS", value_parser = parse_max_sectors)]
    max_sectors: Option<u32>,

    /// Placement of ciphers, and submitter of encrypted writes (default adaptive)
    ///
    /// For comparisons: dm-crypt's variants of 2013 and 2015, Linux's present choice, and any other
    /// by its fields, such as `place=any,submit=thread,sort=on`; see docs/pipelines.md.
    #[arg(long, value_name = "NAME", value_parser = PipelineParser)]
    pipeline: Option<PipelineChoice>,

    /// Bounce memory for encrypted writes: none, slots, or a page allocator (default none)
    ///
    /// None is the fastest, because the server owns all memory: contiguous slots, and nothing at
    /// all for a file in memory. The others are the kernel's methods since 2014, for comparisons;
    /// see docs/pages.md.
    #[arg(long, value_name = "NAME[,OPTION=on|off...]", value_parser = PagesParser)]
    pages: Option<BounceChoice>,

    /// I/O priority of the clients: rt:0 to rt:7, be:0 to be:7, idle (default be:4)
    #[arg(long, value_name = "CLASS[:LEVEL]", value_parser = Priority::parse)]
    ioprio: Option<Priority>,

    /// Another name of this volume: clients that open NAME get this I/O priority
    ///
    /// May be repeated. The empty name has the priority of --ioprio.
    #[arg(long, value_name = "NAME=CLASS[:LEVEL]", value_parser = Alias::parse)]
    alias: Vec<Alias>,
}

impl SchedulingArgs {
    /// Settings of the volume's queue.
    pub(crate) fn scheduling(&self) -> Scheduling {
        let default = Scheduling::default();
        Scheduling {
            elevator: self.elevator.clone(),
            queue_depth: self.queue_depth,
            max_sectors: self.max_sectors.unwrap_or(default.max_sectors),
        }
    }

    /// Placement of its ciphers.
    pub(crate) fn pipeline(&self) -> PipelineChoice {
        self.pipeline.unwrap_or_default()
    }

    /// Bounce memory of its writes.
    pub(crate) fn bounce(&self) -> BounceChoice {
        self.pages.unwrap_or_default()
    }

    /// The elevator and the pipeline as settings of a world of the lab, which accepts no others of
    /// these.
    #[cfg(feature = "lab")]
    pub(crate) fn of_lab(&self) -> Result<Vec<Override>, Failure> {
        let others = self.queue_depth.is_some()
            || self.max_sectors.is_some()
            || self.pages.is_some()
            || self.ioprio.is_some()
            || !self.alias.is_empty();
        if others {
            return Err(Failure::failed(
                "in the lab say --elevator, --pipeline, and anything else of the world with --set \
                 PATH=VALUE, as in --set queue.max_kib=512",
            ));
        }
        let elevator = self.elevator.as_ref().map(|elevator| format!("queue.elevator={elevator}"));
        let pipeline = self.pipeline.map(|choice| format!("crypt.pipeline={choice}"));
        let parse = |text: String| Override::parse(&text).map_err(Failure::failed);
        elevator.into_iter().chain(pipeline).map(parse).collect()
    }

    /// Priority of clients that open the volume by its own name.
    pub(crate) fn priority(&self) -> Priority {
        self.ioprio.unwrap_or_default()
    }

    /// Its other names.
    pub(crate) fn aliases(&self) -> Vec<Alias> {
        self.alias.clone()
    }
}

/// Parses an elevator with its tunables; help and completions show the names.
#[derive(Clone)]
struct ElevatorParser;

impl TypedValueParser for ElevatorParser {
    type Value = ElevatorSpec;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<ElevatorSpec, clap::Error> {
        ElevatorSpec::parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |name, about| PossibleValue::new(name).help(about);
        Some(Box::new(ELEVATORS.iter().map(move |elevator| value(elevator.name, elevator.about))))
    }
}

/// Parses the name or the fields of a pipeline; help and completions show the names.
#[derive(Clone)]
struct PipelineParser;

impl TypedValueParser for PipelineParser {
    type Value = PipelineChoice;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<PipelineChoice, clap::Error> {
        PipelineChoice::parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |(name, about, _)| PossibleValue::new(name).help(about);
        Some(Box::new(PipelineChoice::named().map(value)))
    }
}

/// Parses the bounce memory; help and completions show the names.
#[derive(Clone)]
struct PagesParser;

impl TypedValueParser for PagesParser {
    type Value = BounceChoice;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<BounceChoice, clap::Error> {
        BounceChoice::parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |(name, about)| PossibleValue::new(name).help(about);
        Some(Box::new(BounceChoice::named().map(value)))
    }
}

fn parse_queue_depth(text: &str) -> Result<u32, String> {
    checked_queue_depth(text.parse().unwrap_or(0))
}

fn parse_max_sectors(text: &str) -> Result<u32, String> {
    checked_max_sectors(text.parse().unwrap_or(0))
}
