//! Selection of a request's queue. A submitter (`io_context`) has its own queue for synchronous
//! requests. Asynchronous requests go to queues shared by all submitters, one per class and level.
//!
//! ```text
//!   io-context 1 ── sync ──> [cfqq]          io-context 2 ── sync ──> [cfqq]
//!        └── async, be:4 ──────> [be:4] <────── async, be:4 ─┘
//! ```
//!
//! Threads that submit for others have io-contexts of their own: sequential data of one process
//! arrives in as many queues as threads submitted it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::super::think::ThinkTime;
use super::Cfq;
use super::queue::{Cfqq, CfqqId};
use crate::bio::{IoContext, Origin};
use crate::priority::Priority;
use crate::request::{Request, RequestId};
use crate::time::Nanos;

/// A submitter (`cfq_io_cq`).
#[derive(Debug)]
pub(super) struct Context {
    /// `None`: the submitter has exited and the entry is free.
    io_context: Option<IoContext>,
    /// The submitter's synchronous queue, after its first synchronous request.
    pub(super) sync_queue: Option<CfqqId>,
    /// Priority of the last synchronous request.
    priority: Priority,
    /// Time from the end of one request to the next one.
    pub(super) think: ThinkTime,
}

/// Index of a submitter among the known ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContextId(u32);

/// All known submitters.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    places: Vec<Context>,
    free: Vec<ContextId>,
    by_name: BTreeMap<IoContext, ContextId>,
    /// The last submitter: often the next one too.
    last: Option<(IoContext, ContextId)>,
}

impl Contexts {
    fn find(&self, io_context: IoContext) -> Option<ContextId> {
        match self.last {
            Some((last, id)) if last == io_context => Some(id),
            _ => self.by_name.get(&io_context).copied(),
        }
    }

    pub(super) fn get(&self, io_context: IoContext) -> Option<&Context> {
        self.find(io_context).map(|id| &self.places[id.0 as usize])
    }

    fn get_mut(&mut self, io_context: IoContext) -> Option<&mut Context> {
        self.find(io_context).map(|id| &mut self.places[id.0 as usize])
    }

    /// Entry of a request's submitter, which existed when the request came. The submitter may have
    /// exited since and come back at another entry.
    pub(super) fn submitter(
        &mut self,
        id: ContextId,
        io_context: IoContext,
    ) -> Option<&mut Context> {
        if self.places[id.0 as usize].io_context == Some(io_context) {
            return Some(&mut self.places[id.0 as usize]);
        }
        self.get_mut(io_context)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Context> {
        self.places.iter().filter(|context| context.io_context.is_some())
    }

    /// Finds a submitter, or adds a new one.
    fn enter(&mut self, io_context: IoContext, priority: Priority) -> (ContextId, &mut Context) {
        let id = self.find(io_context).unwrap_or_else(|| {
            let context = Context {
                io_context: Some(io_context),
                sync_queue: None,
                priority,
                think: ThinkTime::default(),
            };
            let id = self.put(context);
            self.by_name.insert(io_context, id);
            id
        });
        self.last = Some((io_context, id));
        (id, &mut self.places[id.0 as usize])
    }

    fn put(&mut self, context: Context) -> ContextId {
        if let Some(id) = self.free.pop() {
            self.places[id.0 as usize] = context;
            return id;
        }
        self.places.push(context);
        ContextId(u32::try_from(self.places.len() - 1).expect("submitters are numbered by u32"))
    }

    /// Removes a submitter; returns its queue.
    fn remove(&mut self, io_context: IoContext) -> Option<CfqqId> {
        let id = self.by_name.remove(&io_context)?;
        self.last = None;
        self.free.push(id);
        let context = &mut self.places[id.0 as usize];
        context.io_context = None;
        context.sync_queue.take()
    }
}

/// A new request and its queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) queue: CfqqId,
    /// Submitter of a synchronous request.
    pub(super) context: Option<ContextId>,
    pub(super) request: RequestId,
    /// Whether the submitter's think time is too long for idling, if known.
    pub(super) thinks_long: Option<bool>,
}

impl Cfq {
    #[inline]
    pub(super) fn queue(&self, id: CfqqId) -> &Cfqq {
        self.queues.get(id.0)
    }

    /// The current queue for I/O of this origin, if there is one.
    pub(super) fn present_queue(&self, origin: &Origin, sync: bool) -> Option<CfqqId> {
        if sync {
            self.contexts.get(origin.io_context).and_then(|context| context.sync_queue)
        } else {
            self.async_queues[origin.priority.index()]
        }
    }

    /// Assigns a queue to a new request. At this point a submitter's queue is split or merged, and
    /// its priority updated (`cfq_set_request`).
    pub(super) fn arrive(&mut self, now: Nanos, id: RequestId, request: &Request) -> Arrival {
        let Origin { io_context, priority, .. } = request.origin;
        if !request.sync {
            let queue = self.async_queue(priority);
            return Arrival { queue, context: None, request: id, thinks_long: None };
        }
        let slice_idle = self.settings.slice_idle;
        let (context_id, context) = self.contexts.enter(io_context, priority);
        context.think.came(now, slice_idle);
        let thinks_long = context.think.is_longer_than(slice_idle);
        let has_changed = context.priority != priority;
        context.priority = priority;
        let present = context.sync_queue;
        let queue = present.and_then(|queue| self.follow(io_context, queue));
        let queue = queue.unwrap_or_else(|| {
            let queue = CfqqId(self.queues.insert(Cfqq::new(true, priority)));
            self.join(io_context, queue);
            queue
        });
        if has_changed {
            self.change_priority(now, queue, priority);
        }
        Arrival { queue, context: Some(context_id), request: id, thinks_long }
    }

    fn async_queue(&mut self, priority: Priority) -> CfqqId {
        let index = priority.index();
        *self.async_queues[index].get_or_insert_with(|| {
            let mut queue = Cfqq::new(false, priority);
            queue.users = 1; // the table itself
            CfqqId(self.queues.insert(queue))
        })
    }

    /// Makes this queue the one for a submitter's synchronous requests.
    pub(super) fn join(&mut self, io_context: IoContext, id: CfqqId) {
        let context = self.contexts.get_mut(io_context).expect("the submitter is known");
        context.sync_queue = Some(id);
        self.queues.at(id.0).users += 1;
    }

    /// Applies a submitter's priority to its queue. Another class counts at once, another level
    /// from the next slice on.
    fn change_priority(&mut self, now: Nanos, id: CfqqId, priority: Priority) {
        let queue = self.queues.at(id.0);
        let class_before = queue.priority.class;
        queue.priority = priority;
        if queue.is_idle_class() {
            queue.idle_window = false;
        }
        if class_before != priority.class && queue.place.is_some() {
            self.resort(now, id);
        }
    }

    /// Removes an exited submitter: no queue idles for it any more (`cfq_exit_icq`).
    pub(super) fn remove_context(&mut self, now: Nanos, io_context: IoContext) {
        let Some(id) = self.contexts.remove(io_context) else { return };
        if self.active.as_ref().is_some_and(|slice| slice.queue == id) {
            self.expire_slice(now, false);
        }
        self.leave(id);
        self.free_if_unused(id);
    }

    /// Frees a queue without users and requests.
    #[inline]
    pub(super) fn free_if_unused(&mut self, id: CfqqId) {
        if self.queue(id).is_unused() {
            debug_assert!(self.active.as_ref().is_none_or(|slice| slice.queue != id));
            self.queues.remove(id.0);
        }
    }
}
