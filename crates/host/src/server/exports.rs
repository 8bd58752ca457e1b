//! The exports of a server: what clients are offered, and which volume serves them.
//!
//! A client in its handshake keeps the list that it was shown, because its options refer to places
//! in the list. The list has names only: an export may be closed, changed or removed between the
//! list and the client's choice, so the server is asked for each export that a client chooses.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blockyard_engine::priority::Priority;
use blockyard_protocol::nbd::Export;

use crate::Error;
use crate::throttle::SharedThrottle;
use crate::volume::Volume;

/// Length of an export's name in an error.
const NAME_SHOWN_CHARS: usize = 64;

/// An export: a name and its volume. Several names may share one volume.
pub struct ServedExport {
    /// Name; the empty name is the default export.
    pub name: String,
    /// Volume.
    pub volume: Arc<Volume>,
    /// I/O priority of clients that open this name.
    pub priority: Priority,
    /// Limits of the rate of all its clients together; exports of a group share the buckets.
    pub throttle: Option<Arc<SharedThrottle>>,
    /// The export is closed after this time without a client; `None`: it stays open.
    pub idle_close: Option<Duration>,
    /// Limit of the connections of all names of its volume; further clients are refused. `None`:
    /// only that of the server.
    pub max_connections: Option<usize>,
}

impl ServedExport {
    /// An export of the usual priority, without limits, which stays open.
    pub fn new(name: impl Into<String>, volume: Arc<Volume>) -> Self {
        Self {
            name: name.into(),
            volume,
            priority: Priority::default(),
            throttle: None,
            idle_close: None,
            max_connections: None,
        }
    }
}

/// The exports for new clients.
pub(super) struct Catalogue {
    /// In the order in which clients see them.
    entries: Vec<Entry>,
    /// The list for new clients.
    offer: Arc<[Export]>,
    /// Clients may open several connections.
    multi_conn: bool,
}

/// A name for clients.
struct Entry {
    name: String,
    /// `None`: the export is closed, and opened when a client asks for it.
    open: Option<Arc<ServedExport>>,
}

impl Entry {
    fn described(&self, multi_conn: bool) -> Export {
        let export = match &self.open {
            Some(export) => described(export, multi_conn),
            None => {
                let description = "closed until its first use".into();
                Export { description, ..Export::new(&self.name, 0) }
            }
        };
        // An open one may be closed between the list and the question.
        Export { is_closed: true, ..export }
    }
}

impl Catalogue {
    /// The list with these names in this order. Names without an export are those of closed ones.
    ///
    /// # Errors
    /// A name is invalid or used twice, or the order lacks one.
    pub(super) fn new(
        order: &[String],
        served: Vec<ServedExport>,
        multi_conn: bool,
    ) -> Result<Self, Error> {
        Self::of(Vec::new(), order, served, multi_conn)
    }

    fn of(
        known: Vec<Arc<ServedExport>>,
        order: &[String],
        added: Vec<ServedExport>,
        multi_conn: bool,
    ) -> Result<Self, Error> {
        let mut open: Vec<_> = added.into_iter().map(Arc::new).chain(known).collect();
        let mut entries: Vec<Entry> = Vec::with_capacity(order.len());
        let mut exports = Vec::with_capacity(order.len());
        for name in order {
            let place = open.iter().position(|one| one.name == *name);
            let open = place.map(|place| open.remove(place));
            let entry = Entry { name: name.clone(), open };
            let problem = |problem: String| Error::volume(Path::new(&shortened(name)), problem);
            let export = entry.described(multi_conn);
            export.check().map_err(|error| problem(error.to_string()))?;
            if entries.iter().any(|other| other.name == *name) {
                return Err(problem("two exports have this name; give each its own".into()));
            }
            exports.push(export);
            entries.push(entry);
        }
        Ok(Self { entries, offer: exports.into(), multi_conn })
    }

    /// The list with these exports in this order; `added` first becomes a part of it.
    ///
    /// # Errors
    /// See [`Catalogue::new`].
    pub(super) fn changed(
        &self,
        order: &[String],
        added: Vec<ServedExport>,
    ) -> Result<Self, Error> {
        Self::of(self.served().cloned().collect(), order, added, self.multi_conn)
    }

    /// The open exports.
    pub(super) fn served(&self) -> impl Iterator<Item = &Arc<ServedExport>> {
        self.entries.iter().filter_map(|entry| entry.open.as_ref())
    }

    /// The open export at a place of the order.
    ///
    /// # Panics
    /// It is closed, or there is none.
    pub(super) fn at(&self, place: usize) -> &Arc<ServedExport> {
        self.entries[place].open.as_ref().expect("a disk has an open export")
    }

    /// The export of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Arc<ServedExport>> {
        self.served().find(|one| one.name == name)
    }

    /// Whether this is the name of a closed export.
    pub(super) fn is_closed(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name == name && entry.open.is_none())
    }

    /// Whether new clients may still open this export.
    pub(super) fn has(&self, export: &Arc<ServedExport>) -> bool {
        self.served().any(|one| Arc::ptr_eq(one, export))
    }

    /// Closes these exports for new clients.
    pub(super) fn close(&mut self, exports: &[Arc<ServedExport>]) {
        let is_it = |open: &mut Arc<ServedExport>| exports.iter().any(|one| Arc::ptr_eq(one, open));
        for entry in &mut self.entries {
            entry.open.take_if(is_it);
        }
        self.offer = self.made_offer();
    }

    /// Exports that are closed when they have no client, those of a volume together.
    pub(super) fn closable(&self) -> Vec<Vec<Arc<ServedExport>>> {
        let mut groups: Vec<Vec<Arc<ServedExport>>> = Vec::new();
        for one in self.served().filter(|one| one.idle_close.is_some()) {
            let is_its =
                |group: &&mut Vec<Arc<ServedExport>>| Arc::ptr_eq(&group[0].volume, &one.volume);
            match groups.iter_mut().find(is_its) {
                Some(group) => group.push(Arc::clone(one)),
                None => groups.push(vec![Arc::clone(one)]),
            }
        }
        groups
    }

    /// The description of an export for a client that asks for it.
    pub(super) fn described(&self, export: &Arc<ServedExport>) -> Export {
        described(export, self.multi_conn)
    }

    /// The list for a new client, with the present sizes.
    pub(super) fn offer(&mut self) -> Arc<[Export]> {
        let mut both = self.offer.iter().zip(&self.entries);
        let is_present = |(export, entry): (&Export, &Entry)| {
            entry.open.as_ref().is_none_or(|open| export.size_bytes == open.volume.size_bytes())
        };
        if !both.all(is_present) {
            self.offer = self.made_offer();
        }
        Arc::clone(&self.offer)
    }

    fn made_offer(&self) -> Arc<[Export]> {
        self.entries.iter().map(|entry| entry.described(self.multi_conn)).collect()
    }

    /// Each volume once, regardless of its number of names.
    pub(super) fn volumes(&self) -> Vec<Arc<Volume>> {
        distinct(self.served())
    }
}

/// Each volume of these exports once.
pub(super) fn distinct<'a>(
    exports: impl IntoIterator<Item = &'a Arc<ServedExport>>,
) -> Vec<Arc<Volume>> {
    let mut volumes: Vec<Arc<Volume>> = Vec::new();
    for ServedExport { volume, .. } in exports.into_iter().map(Arc::as_ref) {
        if !volumes.iter().any(|one| Arc::ptr_eq(one, volume)) {
            volumes.push(Arc::clone(volume));
        }
    }
    volumes
}

/// A name for an error: the start of a long one.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

/// A volume's description for clients.
fn described(export: &ServedExport, multi_conn: bool) -> Export {
    let ServedExport { name, volume, max_connections, .. } = export;
    let multi_conn = multi_conn && *max_connections != Some(1);
    Export {
        description: volume.describe(),
        read_only: volume.read_only(),
        can_trim: volume.can_discard(),
        can_fast_zero: volume.can_fast_zero() && !volume.read_only(),
        block_min_bytes: volume.minimum_block_bytes(),
        block_preferred_bytes: volume.sector_size_bytes().max(4096),
        multi_conn,
        dirty_bitmap: volume.dirty_bitmap_name().map(str::to_owned),
        ..Export::new(name, volume.size_bytes())
    }
}
