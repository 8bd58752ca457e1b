//! A disk behind a vhost-user socket: the queues of libblkio's driver, and its way to wait.

use crate::Result;
use crate::load::{Door, Job};
use crate::memory;
use rustix::event::{PollFd, PollFlags, poll};
use std::hint::spin_loop;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport,
    VirtioFeatureFlags,
};

/// Entries of a ring; a request has three.
const RING_LEN: u16 = 256;

/// One queue of a connection.
pub(crate) struct Queue {
    queue: VirtioBlkQueue<'static, usize>,
    kick: Box<dyn QueueNotifier>,
    call: Arc<EventFd>,
    slots: Vec<&'static mut [u8]>,
    is_write: bool,
    is_polled: bool,
    /// The connection and the memory of the rings, shared by all queues.
    _transport: Arc<Box<VirtioBlkTransport>>,
}

pub(crate) fn connect(path: &str, job: &Job, is_polled: bool) -> Result<Vec<Queue>> {
    // With FLUSH and without CONFIG_WCE a write may end before it is stable.
    let features = VirtioFeatureFlags::VERSION_1.bits()
        | VirtioFeatureFlags::RING_EVENT_IDX.bits()
        | VirtioBlkFeatureFlags::FLUSH.bits()
        | VirtioBlkFeatureFlags::MQ.bits();
    let mut transport: Box<VirtioBlkTransport> = Box::new(VhostUser::new(path, features)?);
    let mut queues = VirtioBlkQueue::setup_queues(&mut *transport, job.queues, RING_LEN)?;
    let each = job.depth * job.len_bytes;
    let (file, bytes) = memory::shared(job.queues * each)?;
    transport.map_mem_region(bytes.as_ptr() as usize, bytes.len(), file.as_raw_fd(), 0)?;
    queues.iter_mut().for_each(|queue| queue.set_used_notif_enabled(false));
    let transport = Arc::new(transport);
    let parts = queues.into_iter().zip(bytes.chunks_exact_mut(each)).enumerate();
    let parts = parts.map(|(index, (queue, bytes))| Queue {
        queue,
        kick: transport.get_submission_notifier(index),
        call: transport.get_completion_fd(index),
        slots: bytes.chunks_exact_mut(job.len_bytes).collect(),
        is_write: job.is_write,
        is_polled,
        _transport: Arc::clone(&transport),
    });
    Ok(parts.collect())
}

impl Door for Queue {
    fn submit(&mut self, slot: usize, offset: u64) -> Result<()> {
        if self.is_write {
            self.queue.write(offset, self.slots[slot], slot)?;
        } else {
            self.queue.read(offset, self.slots[slot], slot)?;
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        if self.queue.avail_notif_needed() {
            self.kick.notify()?;
        }
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<usize>) -> Result<()> {
        while !self.queue.completions().has_next() {
            if self.is_polled {
                spin_loop();
                continue;
            }
            self.queue.set_used_notif_enabled(true);
            // Requests that ended before the switch are not signalled.
            if !self.queue.completions().has_next() {
                // The server may have made the descriptor non-blocking.
                poll(&mut [PollFd::new(&*self.call, PollFlags::IN)], -1)?;
                self.call.read()?;
            }
            self.queue.set_used_notif_enabled(false);
        }
        for completion in self.queue.completions() {
            if completion.ret != 0 {
                return Err(format!("a request ended with {}", completion.ret).into());
            }
            ended.push(completion.context);
        }
        Ok(())
    }
}
