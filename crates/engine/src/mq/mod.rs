//! The queue between what submits bios and a device (`block/blk-mq.c`, `block/blk-core.c`).

pub mod request;
