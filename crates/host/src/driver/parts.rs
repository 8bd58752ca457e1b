//! The parts of a volume that its drivers share.

use std::sync::Arc;
use std::time::Instant;

use blockyard_engine::bio::{IoContext, Sector};
use blockyard_engine::dm::table::Table;

use super::bounce::BounceBudget;
use crate::backend::Backend;
use crate::durability::Durability;
use crate::gate::Gate;
use crate::ranges::VolumeRanges;
use crate::recording::Switch;
use crate::stages::StageStats;
use crate::workers::Workers;

/// All that a driver needs, each part another module's.
pub(crate) struct Parts {
    pub(crate) table: Table,
    pub(crate) backend: Arc<Backend>,
    pub(crate) workers: Option<Arc<Workers>>,
    /// From this length on, where the cipher of a bio runs depends on the load; `None` if of none.
    pub(crate) asks_load_from: Option<Sector>,
    pub(crate) bounce: Arc<BounceBudget>,
    /// The io-context of the thread that submits encrypted writes: connections take turns at it.
    pub(crate) writer: IoContext,
    /// Of its writes in flight; `None` where nothing is written.
    pub(crate) ranges: Option<Arc<VolumeRanges>>,
    /// `None` where no order is sent to shards.
    pub(crate) gate: Option<Arc<Gate>>,
    /// Whether acknowledged writes can still be made stable.
    pub(crate) durability: Arc<Durability>,
    /// Whether a recording goes on.
    pub(crate) switch: Arc<Switch>,
    pub(crate) stage_stats: Arc<StageStats>,
    /// The clock of all its shards starts there.
    pub(crate) opened: Instant,
}
