-- Runs that wait for room for a sandbox, and a way to the next due run of each agent that passes over none of its others.

-- Since when the run's open step has waited for room; its place in the queue.
ALTER TABLE run ADD COLUMN room_since INTEGER;
CREATE INDEX run_waiting_for_room ON run (room_since, id) WHERE room_since IS NOT NULL AND state = 'waiting';

-- By agent, so that an agent at its limit costs one step however many of its runs are due.
DROP INDEX run_due;
CREATE INDEX run_due ON run (project_id, agent, wake_at, id) WHERE wake_at IS NOT NULL AND blocked IS NULL;
