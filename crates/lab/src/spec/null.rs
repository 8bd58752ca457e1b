//! `device.kind = "null"` and `[stack]`: a null device with queues, and a queue of request-based
//! device mapper on top.

use blockyard_engine::dm::multipath::stacked::{CloneInsert, CompleteBy, RunBy, Stacking};
use blockyard_engine::mq::QueueConfig;
use blockyard_sim::world::{
    CompletionRule, DeviceConfig, IrqMode, NullConfig, QueueMode, StackConfig, StackCosts,
};

use super::section::Section;
use super::world::{ns, rq_affinity};
use crate::Error;

/// Defaults of null_blk.
const COMPLETION_NS: u64 = 10_000;
const HW_QUEUE_DEPTH: u32 = 64;
/// Default of dm-mq (`dm_mq_queue_depth`).
const STACK_DEPTH: u32 = 2048;

/// Reads the device. Keys have null_blk's names, except `nr_hw_queues`, the 2016 mail's name of
/// `submit_queues`.
pub(super) fn device(section: &mut Section<'_>, sectors: u64) -> Result<NullConfig, Error> {
    let queue_modes = [("mq", QueueMode::Mq), ("rq", QueueMode::Rq), ("bio", QueueMode::Bio)];
    let irqmodes =
        [("softirq", IrqMode::Softirq), ("none", IrqMode::None), ("timer", IrqMode::Timer)];
    let rules = [("inline", CompletionRule::Inline), ("softirq", CompletionRule::SoftirqIfSingle)];
    let config = NullConfig {
        sectors,
        queue_mode: section.choice("queue_mode", &queue_modes)?,
        irqmode: section.choice("irqmode", &irqmodes)?,
        completion: ns(section, "completion_nsec", COMPLETION_NS)?,
        hw_queues: section.number("nr_hw_queues", 1..=1024, 1)?,
        hw_queue_depth: section.number("hw_queue_depth", 1..=65_536, HW_QUEUE_DEPTH)?,
        rq_affinity: rq_affinity(section)?,
        completion_rule: section.choice("completion", &rules)?,
        end: ns(section, "end_ns", 0)?,
    };
    if config.queue_mode != QueueMode::Mq && config.hw_queues > 1 {
        let what = "above 1 needs queue_mode \"mq\"";
        return Err(section.wrong_key("nr_hw_queues", what));
    }
    Ok(config)
}

/// Number of a device's hardware queues.
pub(super) fn hw_queues(device: &DeviceConfig) -> u16 {
    match device {
        DeviceConfig::Null(null) => null.hw_queues,
        DeviceConfig::Flash(flash) => flash.queues.count,
        _ => 1,
    }
}

/// Reads the stacked queue, if present.
pub(super) fn stack(
    root: &mut Section<'_>,
    lower: &QueueConfig,
    device: &DeviceConfig,
) -> Result<Option<StackConfig>, Error> {
    let Some(mut section) = root.section("stack")? else { return Ok(None) };
    let is_there = section.choice("kind", &[("dm-mq", true), ("off", false)])?;
    let inserts = [
        ("worker", CloneInsert::Queued(RunBy::Worker)),
        ("caller", CloneInsert::Queued(RunBy::Caller)),
        ("direct", CloneInsert::Direct),
    ];
    let completions = [("softirq", CompleteBy::Softirq), ("here", CompleteBy::Here)];
    let stacking = Stacking {
        insert: section.choice("insert", &inserts)?,
        run_on_completion: section.flag("run_on_completion", true)?,
        complete_by: section.choice("complete_by", &completions)?,
    };
    let run_looks_first = section.flag("run_looks_first", true)?;
    let hw_queues = section.number("nr_hw_queues", 1..=1024, 1)?;
    let queue_depth = section.number("queue_depth", 1..=65_536, STACK_DEPTH)?;
    let mut costs = section.part("costs")?;
    let read = StackCosts {
        request: ns(&mut costs, "request_ns", 400)?,
        clone: ns(&mut costs, "clone_ns", 300)?,
        path_lock: ns(&mut costs, "path_lock_ns", 0)?,
        end: ns(&mut costs, "end_ns", 150)?,
        queue_work: ns(&mut costs, "queue_work_ns", 100)?,
    };
    if read.path_lock > read.clone {
        return Err(costs.wrong_key("path_lock_ns", "exceeds clone_ns, of which it is a part"));
    }
    costs.finish()?;
    let kind = match device {
        DeviceConfig::Null(null) if null.queue_mode == QueueMode::Mq => None,
        DeviceConfig::Null(_) => Some("needs device.queue_mode \"mq\" below"),
        _ => Some("needs device.kind \"null\" below"),
    };
    if let Some(what) = kind.filter(|_| is_there) {
        return Err(section.wrong(what));
    }
    section.finish()?;
    let nr_requests = QueueConfig::usual_nr_requests(lower.generation, queue_depth);
    let upper = QueueConfig { hw_queues, queue_depth, nr_requests, timeout: None, ..*lower };
    Ok(is_there.then_some(StackConfig { upper, stacking, run_looks_first, costs: read }))
}
