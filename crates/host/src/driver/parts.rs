//! The parts of a volume that its drivers share.

use std::sync::Arc;
use std::time::Instant;

use blockyard_engine::bio::{IoContext, Sector};

use super::bounce::BounceBudget;
use crate::backend::Backend;
use crate::dirty_bitmap::DirtyBitmap;
use crate::durability::Durability;
use crate::gate::Gate;
use crate::loaded_table::LoadedTable;
use crate::ranges::VolumeRanges;
use crate::recording::Switch;
use crate::stages::StageStats;
use crate::workers::Workers;

/// All parts that a driver needs, each from another module.
// 14 fields: each is one part.
pub(crate) struct Parts {
    pub(crate) table: LoadedTable,
    pub(crate) backend: Arc<Backend>,
    pub(crate) workers: Option<Arc<Workers>>,
    /// Minimum length of bios whose cipher placement depends on the load; `None` without such bios.
    pub(crate) asks_load_from: Option<Sector>,
    /// Bytes of short requests together that pay for a hand-over; `None` if they never do.
    pub(crate) batches_from_bytes: Option<u64>,
    pub(crate) bounce: Arc<BounceBudget>,
    /// Io-context of the thread that submits encrypted writes; connections take turns as that
    /// thread.
    pub(crate) writer: IoContext,
    /// Ranges of writes in flight; `None` for read-only volumes.
    pub(crate) ranges: Option<Arc<VolumeRanges>>,
    /// `None` if shards receive no orders.
    pub(crate) gate: Option<Arc<Gate>>,
    /// Blocks written since the last backup; `None` if they are not tracked.
    pub(crate) dirty: Option<Arc<DirtyBitmap>>,
    /// Whether acknowledged writes can still be made stable.
    pub(crate) durability: Arc<Durability>,
    /// Whether a recording runs.
    pub(crate) switch: Arc<Switch>,
    pub(crate) stage_stats: Arc<StageStats>,
    /// Start of the clock of all shards.
    pub(crate) opened: Instant,
}
