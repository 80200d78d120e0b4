//! What the process takes of the machine, under the names that Prometheus gives to this for every program.
//!
//! Memory and files are read from `/proc`: elsewhere they are left out.

use std::{fmt::Error, fs, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};
use rustix::{
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

use super::{counter, gauge, to_u64};

/// The figures at one moment.
#[derive(Debug)]
pub(super) struct ProcessFigures {
    started: Duration,
    cpu: Duration,
    /// Resident and virtual bytes.
    memory: Option<(u64, u64)>,
    open_files: Option<u64>,
    open_files_max: Option<u64>,
}

impl ProcessFigures {
    /// Those of this process, which began at `started` after 1970.
    pub(super) fn of(started: Duration) -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let status = fs::read_to_string("/proc/self/status").ok();
        let files = fs::read_dir("/proc/self/fd").ok();
        Self {
            started,
            cpu: Duration::try_from(cpu).unwrap_or_default(),
            memory: status.as_deref().and_then(memory_of),
            // One of them is that of the directory.
            open_files: files.map(|files| to_u64(files.count().saturating_sub(1))),
            open_files_max: getrlimit(Resource::Nofile).current,
        }
    }
}

/// Resident and virtual bytes in what `/proc/self/status` says.
fn memory_of(status: &str) -> Option<(u64, u64)> {
    let bytes = |name: &str| {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kibibytes * 1024)
    };
    bytes("VmRSS").zip(bytes("VmSize"))
}

impl Collector for ProcessFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let encoder = &mut encoder;
        let help = "Time of the processor that the gateway has used, in seconds";
        let cpu = counter(encoder, "process_cpu_seconds", help)?;
        ConstCounter::new(self.cpu.as_secs_f64()).encode(cpu)?;
        let help = "Start time of the gateway in Unix seconds";
        let started = gauge(encoder, "process_start_time_seconds", help)?;
        ConstGauge::new(self.started.as_secs_f64()).encode(started)?;
        let (resident, virtual_size) = self.memory.unzip();
        for (name, help, figure) in [
            (
                "process_resident_memory_bytes",
                "Resident memory of the gateway",
                resident,
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory of the gateway",
                virtual_size,
            ),
            (
                "process_open_fds",
                "Open files of the gateway",
                self.open_files,
            ),
            (
                "process_max_fds",
                "Maximum open files of the gateway",
                self.open_files_max,
            ),
        ] {
            if let Some(figure) = figure {
                ConstGauge::new(figure).encode(gauge(encoder, name, help)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_where_it_is_said() {
        let status = "Name:\tx\nVmPeak:\t  30 kB\nVmSize:\t  20 kB\nVmRSS:\t  10 kB\n";
        assert_eq!(memory_of(status), Some((10_240, 20_480)));
        assert_eq!(memory_of("Name:\tx\n"), None);
        assert_eq!(memory_of("VmSize:\t1 MB\nVmRSS:\t1 MB\n"), None);
    }
}
