//! The execs of a sandbox: running ones, and finished ones while there is room to remember them.

use saggar_domain::ExecId;

use super::exec::Exec;

/// Maximum number of execs with live processes.
const LIVE_MAX: usize = 256;
/// Maximum number of remembered finished execs.
const FINISHED_MAX: usize = 256;
#[cfg(test)]
pub(super) const EXECS_MAX: usize = LIVE_MAX + FINISHED_MAX;
/// Bytes of output kept for all execs together.
const KEPT_MAX: usize = 16 * 1024 * 1024;

/// All execs, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Execs {
    list: Vec<Exec>,
    last: u32,
}

impl Execs {
    /// The number of the next exec; never reused.
    pub(crate) fn next_number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    pub(crate) fn is_full(&self) -> bool {
        self.list.iter().filter(|exec| exec.is_live()).count() >= LIVE_MAX
    }

    pub(crate) fn add(&mut self, exec: Exec) {
        self.list.push(exec);
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Exec> {
        let position = self.list.iter().position(|exec| exec.number == number)?;
        Some(self.list.remove(position))
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Exec> {
        self.list.iter().find(|exec| exec.number == number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Exec> {
        self.list.iter_mut().find(|exec| exec.number == number)
    }

    pub(crate) fn find(&mut self, id: &ExecId) -> Option<&mut Exec> {
        self.list.iter_mut().find(|exec| exec.id == *id)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Exec> {
        self.list.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Exec> {
        self.list.iter_mut()
    }

    /// Whether anything but the agent may be running.
    pub(crate) fn has_live(&self) -> bool {
        self.list.iter().any(Exec::is_live)
    }

    /// Drops what exceeds the bounds. `needed` is the position from which a client still reads an exec's output, if any
    /// does.
    pub(crate) fn shed(&mut self, needed: impl Fn(u32) -> Option<u64>) {
        let mut finished = self.list.iter().filter(|exec| !exec.is_live()).count();
        self.list.retain(|exec| {
            let goes = finished > FINISHED_MAX && !exec.is_live() && needed(exec.number).is_none();
            finished -= usize::from(goes);
            !goes
        });
        let mut excess = self.list.iter().map(|exec| exec.ring.kept()).sum::<usize>().saturating_sub(KEPT_MAX);
        // Finished ones first, and among them those without readers first; never what is still being read.
        for is_running in [false, true] {
            for exec in self.list.iter_mut().filter(|exec| exec.is_running() == is_running) {
                if excess == 0 {
                    return;
                }
                let before = exec.ring.kept();
                exec.ring.drop_front(excess, needed(exec.number).unwrap_or(u64::MAX));
                excess -= before - exec.ring.kept();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::ExecStatus;
    use saggar_domain::{ExecSpec, OutputStream};

    use super::*;
    use crate::hold::exec::{Accepted, Ended, OUTPUT_WINDOW};
    use crate::hold::moment::Moment;

    fn add(execs: &mut Execs, output: usize, is_finished: bool) -> u32 {
        let number = execs.next_number();
        let mut bits = [0; 16];
        bits[..4].copy_from_slice(&number.to_le_bytes());
        let mut exec = Exec::new(Accepted {
            id: ExecId::from_random(bits),
            number,
            spec: &ExecSpec { argv: vec!["x".to_owned()], ..ExecSpec::default() },
            cwd: "/",
            output_max: usize::MAX,
            deadline: None,
            portion: None,
            now_ms: 0,
        });
        exec.hear_started(1, 0).unwrap();
        for _ in 0..output / OUTPUT_WINDOW as usize {
            exec.hear_output(OutputStream::Stdout, &vec![0; OUTPUT_WINDOW as usize]).unwrap();
            exec.credit(exec.ring.end());
        }
        if is_finished {
            exec.end(Ended {
                at: Moment::at(0),
                at_ms: 0,
                status: ExecStatus::Exited,
                exit_code: Some(0),
                signal: None,
                error: None,
            });
            exec.hear_tree_gone().unwrap();
        }
        execs.add(exec);
        number
    }

    #[test]
    fn so_many_finished_ones_are_remembered_and_all_live_ones() {
        let mut execs = Execs::default();
        let running = add(&mut execs, 0, false);
        for _ in 0..FINISHED_MAX + 10 {
            add(&mut execs, 0, true);
        }
        execs.shed(|number| (number == 2).then_some(0));
        let numbers: Vec<u32> = execs.iter().map(|exec| exec.number).collect();
        assert_eq!(numbers.len(), FINISHED_MAX + 1);
        assert_eq!(numbers[..3], [running, 2, 13]);
    }

    #[test]
    fn output_goes_from_the_oldest_finished_one_and_never_from_under_a_reader() {
        let mut execs = Execs::default();
        let quarter = KEPT_MAX / 4;
        let [running, read, oldest, newer] = [(false, 3), (true, 1), (true, 2), (true, 1)]
            .map(|(is_finished, quarters)| add(&mut execs, quarters * quarter, is_finished));
        execs.shed(|number| (number == read).then_some(0));
        let kept = [running, read, oldest, newer].map(|number| execs.get(number).unwrap().ring.kept() / quarter);
        assert_eq!(kept, [3, 1, 0, 0]);
    }
}
