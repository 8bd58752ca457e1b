//! The files, regions, sockets and CPUs of a job's clones.

/// The file of a clone, and its region there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// `filename`: jobs and clones with the same name share the file. Without a name each clone has
    /// its own file.
    pub filename: Option<String>,
    /// `size`: length of each clone's region, and of a pass.
    pub size_bytes: u64,
    /// `io_size`: bytes of a pass, if not [`Self::size_bytes`].
    pub io_size_bytes: Option<u64>,
    /// `offset`: start of the region in the file.
    pub offset_bytes: u64,
    /// `offset_increment`: distance between the regions of two successive clones.
    pub offset_increment_bytes: u64,
    /// `divide` (our own option): the region is divided evenly between the clones, in their order.
    /// The remainder at the end is unused.
    pub divide: bool,
    /// `overwrite`: the file is laid out in full before it is written.
    pub overwrite: bool,
}

/// Number of the clones, and where they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clones {
    /// `numjobs`: number of clones; with [`Self::nodes`] the number on each node.
    pub numjobs: u32,
    /// `numa_cpu_nodes`: sockets of the clones, in order of the clones; empty: any socket. (In fio
    /// each clone may run on all of these nodes.)
    pub nodes: Vec<u16>,
    /// `cpus_allowed`: the CPUs of the clones; empty: any CPU.
    pub cpus: Vec<u16>,
    /// `cpus_allowed_policy=split`: each clone has one of these CPUs, in turn.
    pub splits_cpus: bool,
}

impl Default for Clones {
    fn default() -> Self {
        Self { numjobs: 1, nodes: Vec::new(), cpus: Vec::new(), splits_cpus: false }
    }
}

impl Clones {
    /// Number of clones on all sockets.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.numjobs.saturating_mul(u32::try_from(self.nodes.len().max(1)).unwrap_or(u32::MAX))
    }

    /// Socket of a clone.
    pub(crate) fn socket(&self, clone: u32) -> Option<u16> {
        self.nodes.get((clone / self.numjobs) as usize).copied()
    }

    /// CPUs of a clone; `number` counts the clones of all jobs, like in fio.
    pub(crate) fn cpus_of(&self, number: u64) -> &[u16] {
        match self.cpus.len() as u64 {
            count if count > 0 && self.splits_cpus => {
                let own = (number % count) as usize;
                &self.cpus[own..=own]
            }
            _ => &self.cpus,
        }
    }
}
