//! What is measured in a round, and the ratios that the targets are about.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::image::{self, BUSYBOX, SMALL, run};
use super::pooled::Pooled;
use super::{BUILDS, IMPORT_BYTES, LARGE_MIB, LARGE_TIMES, SMALL_TIMES, STARTS};
use crate::bench::idle;
use crate::bench::options::Options;
use crate::bench::statistics::median;

#[derive(Debug, Default)]
pub struct Measured {
    pub rounds: Vec<Round>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// A start and end of a sandbox, in ms: from the host, from an image, from an image with its files on disk.
    pub start_ms: [f64; 3],
    /// The same from a server's pools: from the host, from an image.
    pub pooled_ms: [f64; 2],
    /// The large image, in ms: `tar xzf`, the same and written to disk, an import.
    pub import_ms: [f64; 3],
    /// A build of which every step is cached, in ms.
    pub cached_build_ms: f64,
    /// An idle sandbox, in KiB: from the host, from an image. `None` if it is left out.
    pub idle_kib: Option<[f64; 2]>,
    /// Small files, in ms: on a bare tmpfs, in a sandbox's memory, on the bare disk, on a sandbox's disk.
    pub small_ms: [f64; 4],
    /// The large file, the same.
    pub large_ms: [f64; 4],
}

impl Round {
    pub fn measure(bench: &mut Bench<'_>, number: usize, is_reversed: bool) -> Result<Self> {
        let mut starts = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..STARTS {
            for (times, way) in starts.iter_mut().zip([Way::Host, Way::Memory, Way::Disk]) {
                times.push(bench.sandbox_ms(way, "true")?);
            }
        }
        let pooled_ms = bench.pooled.round()?;
        let start_ms = starts.map(|times| median(&times));
        let [_, memory_ms, disk_ms] = start_ms;
        let files = |script: &str| {
            in_turn(is_reversed, |index| match index {
                0 => bench.bare_ms(&bench.tmpfs, script),
                1 => bench.sandbox_ms(Way::Memory, script).map(|ms| ms - memory_ms),
                2 => bench.bare_ms(&bench.disk, script),
                _ => bench.sandbox_ms(Way::Disk, script).map(|ms| ms - disk_ms),
            })
        };
        let import_ms = in_turn(is_reversed, |index| match index {
            0 => bench.untar_ms(false),
            1 => bench.untar_ms(true),
            _ => bench.import_ms(),
        })?;
        let builds = (0..BUILDS).map(|_| bench.build_ms()).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            start_ms,
            pooled_ms,
            import_ms,
            cached_build_ms: median(&builds),
            small_ms: files(&small_script())?,
            large_ms: files(&large_script())?,
            idle_kib: bench.idle_kib(number, is_reversed)?,
        })
    }

    pub fn start_ratio(&self) -> f64 {
        self.start_ms[1] / self.start_ms[0]
    }

    pub fn pooled_ratio(&self) -> f64 {
        self.pooled_ms[1] / self.pooled_ms[0]
    }

    pub fn disk_added_ms(&self) -> f64 {
        self.start_ms[2] - self.start_ms[1]
    }

    pub fn import_speed(&self) -> f64 {
        self.import_ms[0] / self.import_ms[2]
    }

    pub fn idle_ratio(&self) -> Option<f64> {
        self.idle_kib.map(|[host, image]| image / host)
    }

    /// The speed inside, of the bare one: small and large in memory, small and large on disk.
    pub fn files(&self) -> [f64; 4] {
        let speed = |times: &[f64; 4], at: usize| times[at] / times[at + 1];
        [speed(&self.small_ms, 0), speed(&self.large_ms, 0), speed(&self.small_ms, 2), speed(&self.large_ms, 2)]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The host's own programs.
    Host,
    /// From an image, with changes in memory.
    Memory,
    /// The same with changes on disk.
    Disk,
}

impl Way {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["--user", "root"],
            Self::Memory => &["--user", "root", "--template", "small", "--disk", "1G", "--memory", "2G"],
            Self::Disk => {
                &["--user", "root", "--template", "small", "--storage", "disk", "--disk", "1G", "--memory", "2G"]
            }
        }
    }
}

/// Everything that rounds need.
pub struct Bench<'a> {
    saggar: PathBuf,
    options: &'a Options,
    place: PathBuf,
    data: PathBuf,
    large: PathBuf,
    large_layer: PathBuf,
    small_files: PathBuf,
    tmpfs: Scratch,
    disk: PathBuf,
    pooled: Pooled,
}

/// A directory elsewhere, removed on drop.
struct Scratch(PathBuf);

impl std::ops::Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays is in memory, and gone with the next start of the machine.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl<'a> Bench<'a> {
    pub fn prepare(saggar: &Path, place: &Path, options: &'a Options) -> Result<Self> {
        eprintln!("bench: templates, making images");
        let data = place.join("data");
        let small = image::small(place).context("making the small image")?;
        run(Command::new(saggar).args(["template", "import"]).arg(&small).arg("--data-dir").arg(&data))?;
        let pooled = Pooled::prepare(saggar, place, &small).context("preparing pools")?;
        let (large, large_layer) = image::large(place, IMPORT_BYTES).context("making the large image")?;
        let tmpfs = PathBuf::from(format!("/dev/shm/saggar-bench-{}", std::process::id()));
        let disk = place.join("bare");
        std::fs::create_dir(&tmpfs).context("making a directory in /dev/shm")?;
        let tmpfs = Scratch(tmpfs);
        std::fs::create_dir(&disk)?;
        let bench = Self {
            saggar: saggar.to_owned(),
            options,
            place: place.to_owned(),
            data,
            large,
            large_layer,
            small_files: place.join("root").join(&SMALL[1..]),
            tmpfs,
            disk,
            pooled,
        };
        write_context(place).context("writing a build's directory")?;
        // Shows that each way works, and fills caches.
        bench.build_ms()?;
        for way in [Way::Host, Way::Memory, Way::Disk] {
            bench.sandbox_ms(way, "true")?;
        }
        Ok(bench)
    }

    /// The time of a sandbox that runs a script of busybox in an empty directory.
    fn sandbox_ms(&self, way: Way, script: &str) -> Result<f64> {
        let mut command = Command::new(&self.saggar);
        command.arg("run").args(way.flags()).args(["--env", &format!("SMALL={SMALL}"), "--cwd", "/tmp", "--"]);
        command.args([BUSYBOX, "sh", "-c", script]).env("SAGGAR_DATA_DIR", &self.data);
        timed(&mut command)
    }

    fn bare_ms(&self, directory: &Path, script: &str) -> Result<f64> {
        let mut command = Command::new(BUSYBOX);
        timed(command.args(["sh", "-c", script]).env("SMALL", &self.small_files).current_dir(directory))
    }

    fn untar_ms(&self, is_synced: bool) -> Result<f64> {
        let target = self.place.join("untarred");
        std::fs::create_dir(&target)?;
        let began = Instant::now();
        run(Command::new("tar").arg("xzf").arg(&self.large_layer).arg("-C").arg(&target))?;
        if is_synced {
            run(Command::new("sync").arg("-f").arg(&target))?;
        }
        let ms = began.elapsed().as_secs_f64() * 1000.0;
        self.clear(&target)?;
        Ok(ms)
    }

    fn import_ms(&self) -> Result<f64> {
        let data = self.place.join("imported");
        let began = Instant::now();
        run(Command::new(&self.saggar).args(["template", "import"]).arg(&self.large).arg("--data-dir").arg(&data))?;
        let ms = began.elapsed().as_secs_f64() * 1000.0;
        self.clear(&data)?;
        Ok(ms)
    }

    /// Of five steps, which are cached after the first time.
    fn build_ms(&self) -> Result<f64> {
        let mut command = Command::new(&self.saggar);
        command.args(["template", "build"]).arg(self.place.join("context")).args(["--name", "built", "--data-dir"]);
        timed(command.arg(&self.data))
    }

    /// Removes a directory, and waits until that is on the disk: the next one would be slowed down.
    fn clear(&self, directory: &Path) -> Result<()> {
        std::fs::remove_dir_all(directory)?;
        run(Command::new("sync").arg("-f").arg(&self.place))
    }

    fn idle_kib(&self, round: usize, is_reversed: bool) -> Result<Option<[f64; 2]>> {
        // A few sandboxes take less than what the machine's memory varies by.
        let options = Options { idle_sandboxes: self.options.many, ..self.options.clone() };
        if options.idle_sandboxes == 0 {
            return Ok(None);
        }
        in_turn(is_reversed, |index| {
            let way = [Way::Host, Way::Memory][index];
            let flags: Vec<&str> = way.flags().iter().copied().chain(["--", BUSYBOX, "sleep", "1000"]).collect();
            let fifo = self.place.join(format!("events-{round}-{index}"));
            idle::drop_of_each(&self.saggar, &self.data, &fifo, &options, &flags)
        })
        .map(Some)
    }
}

fn write_context(place: &Path) -> Result<()> {
    let context = place.join("context");
    std::fs::create_dir(&context)?;
    std::fs::write(context.join("file"), "x")?;
    // Not through a shell, which the image hasn't.
    let touch = |path: &str| format!("RUN [\"{BUSYBOX}\", \"touch\", \"{path}\"]");
    let steps = format!(
        "FROM small\nENV GREETING=hello\n{}\nCOPY file /file\n{}\nWORKDIR /tmp\n",
        touch("/tmp/one"),
        touch("/tmp/two")
    );
    Ok(std::fs::write(context.join("Dockerfile"), steps)?)
}

fn small_script() -> String {
    format!(
        "set -e; for i in $(busybox seq {SMALL_TIMES}); do busybox mkdir d; busybox tar xf $SMALL -C d; busybox cat d/* > /dev/null; busybox rm -r d; done"
    )
    .replace("busybox", BUSYBOX)
}

fn large_script() -> String {
    format!(
        "set -e; for i in $(busybox seq {LARGE_TIMES}); do busybox dd if=/dev/zero of=f bs=1M count={LARGE_MIB} 2> /dev/null; busybox dd if=f of=/dev/null bs=1M 2> /dev/null; \
         busybox rm f; done"
    )
    .replace("busybox", BUSYBOX)
}

fn timed(command: &mut Command) -> Result<f64> {
    let began = Instant::now();
    run(command)?;
    Ok(began.elapsed().as_secs_f64() * 1000.0)
}

/// Measures each of several, from the first to the last or back; the results are in their order.
fn in_turn<const N: usize>(is_reversed: bool, mut measure: impl FnMut(usize) -> Result<f64>) -> Result<[f64; N]> {
    let mut results = [0.0; N];
    for turn in 0..N {
        let index = if is_reversed { N - 1 - turn } else { turn };
        results[index] = measure(index)?;
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stay_in_their_order_in_either_direction() {
        for is_reversed in [false, true] {
            let mut seen = Vec::new();
            let results: [f64; 3] = in_turn(is_reversed, |index| {
                seen.push(index);
                Ok(index as f64)
            })
            .unwrap();
            assert_eq!((results, seen[0]), ([0.0, 1.0, 2.0], if is_reversed { 2 } else { 0 }));
        }
    }
}
