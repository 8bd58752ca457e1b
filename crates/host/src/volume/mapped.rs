//! Devices on devices: builds the tables of one text, from the lowest up.
//!
//! A device of memory alone needs no table: the lines above use its memory, and a cipher writes
//! directly into it. Any other device is a layer of the stack ([`Table::over`]).

use std::path::Path;
use std::ptr;

use blockyard_engine::bio::Sector;
use blockyard_engine::dm::line::{Line, MAPPER_FOLDER, MappedDevice};
use blockyard_engine::dm::ram::RAM;
use blockyard_engine::dm::table::{Table, TableExtent};
use blockyard_engine::sq::DevId;

use super::builder::Builder;
use crate::Error;

/// Facts about a mapped device for the lines above.
pub(super) struct Mapped {
    name: String,
    len_sectors: u64,
    dev: DevId,
}

impl Builder<'_> {
    /// Adds all mapped devices; the last one is the volume.
    pub(super) fn mappings(&mut self, mappings: &[MappedDevice]) -> Result<(), Error> {
        let (top, below) = mappings.split_last().expect("a table has a device");
        for mapping in below {
            let dev = match &mapping.lines[..] {
                [line] if ptr::eq(line.target, &RAM) => self.add_memory(Sector(line.len))?,
                _ => {
                    refuse_log(mapping)?;
                    let table = Table::new(self.extents_of(mapping, mappings)?);
                    self.below.push(table);
                    DevId::mapped(self.below.len() - 1)
                }
            };
            let name = mapping.name.clone();
            let len_sectors = mapping.len();
            self.mapped.push(Mapped { name, len_sectors, dev });
        }
        self.extents = self.extents_of(top, mappings)?;
        self.refuse_second_bounce(top)
    }

    fn extents_of(
        &mut self,
        mapping: &MappedDevice,
        mappings: &[MappedDevice],
    ) -> Result<Vec<TableExtent>, Error> {
        let extent = |line: &Line| {
            let target = self.target(line, mappings)?;
            Ok(TableExtent::new(Sector(line.start), Sector(line.len), target))
        };
        mapping.lines.iter().map(extent).collect()
    }

    /// The mapped device of a path, and its length in sectors.
    pub(super) fn mapped_at(&self, path: &str) -> Option<(DevId, u64)> {
        let name = path.strip_prefix(MAPPER_FOLDER)?;
        let mapped = self.mapped.iter().find(|mapped| mapped.name == name)?;
        Some((mapped.dev, mapped.len_sectors))
    }

    /// There is one reserve of bounce slots, for one layer.
    fn refuse_second_bounce(&self, top: &MappedDevice) -> Result<(), Error> {
        let bounces = |extents: &[TableExtent]| extents.iter().any(|one| one.facts().bounces);
        let below = self.below.iter().filter(|table| bounces(table.extents())).count();
        if below + usize::from(bounces(&self.extents)) > 1 {
            let problem = "crypt lines are on devices that are made of crypt lines; one of them \
                           at a time is supported";
            return Err(Error::volume(&mapper_path(&top.name), problem));
        }
        Ok(())
    }
}

/// The log identifies a flush by a number that only the topmost device keeps.
fn refuse_log(mapping: &MappedDevice) -> Result<(), Error> {
    let is_log = |line: &Line| line.needs().log.is_some();
    if mapping.lines.iter().any(is_log) {
        let problem = "is below another device and has a log-writes line; only the last device of \
                       a table can have one";
        return Err(Error::volume(&mapper_path(&mapping.name), problem));
    }
    Ok(())
}

fn mapper_path(name: &str) -> std::path::PathBuf {
    Path::new(MAPPER_FOLDER).join(name)
}
