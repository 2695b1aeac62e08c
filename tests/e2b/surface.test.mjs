// The same surface through the JavaScript client, against the server that $E2B_API_URL names.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import * as e2b from 'e2b'
import { Sandbox } from 'e2b'

const patience = { timeout: 90_000 }
let sandbox

async function until(condition, what) {
  for (let tries = 0; tries < 400; tries += 1) {
    if (await condition()) return
    await new Promise((done) => setTimeout(done, 50))
  }
  assert.fail(`not in time: ${what}`)
}

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { by: 'node', 'a b': 'c=d' }, envs: { GREETING: 'hello' } })
})

after(async () => {
  await sandbox.kill()
})

test('life', patience, async () => {
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.deepEqual(info.metadata, { by: 'node', 'a b': 'c=d' })
  await sandbox.setTimeout(300_000)
  assert.ok(await sandbox.isRunning())
  const pages = Sandbox.list({ query: { metadata: { by: 'node', 'a b': 'c=d' } } })
  assert.deepEqual((await pages.nextItems()).map((found) => found.sandboxId), [sandbox.sandboxId])
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run('echo again')).stdout, 'again\n')
  assert.ok((await sandbox.getMetrics()).length > 0)
  const other = await Sandbox.create({ timeoutMs: 60_000 })
  await other.pause()
  assert.equal((await other.getInfo()).state, 'paused')
  assert.equal((await Sandbox.connect(other.sandboxId)).sandboxId, other.sandboxId)
  assert.equal((await other.getInfo()).state, 'running')
  assert.equal(await other.kill(), true)
  assert.equal(await other.kill(), false)
  await assert.rejects(other.getInfo(), e2b.NotFoundError)
  await assert.rejects(other.commands.run('true'), e2b.SandboxError)
})

test('what is not built is refused', patience, async () => {
  await assert.rejects(Sandbox.create('nextjs'), /not found/)
  await assert.rejects(Sandbox.create({ network: { allowOut: ['8.8.8.8'] } }), /enforced/)
  const notYet = (kind) => (error) => error instanceof kind && /not supported yet/.test(error.message)
  await assert.rejects(Sandbox.create({ iam: { tokens: { aws: e2b.Secret.iamToken({ audience: 'a', tokenType: 'JWT-SVID' }) } } }), notYet(e2b.SandboxError))
  await assert.rejects(e2b.Secret.create('name', 'value'), notYet(e2b.SecretError))
  await assert.rejects(e2b.Secret.destroy('name'), notYet(e2b.SecretError))
  // Builds are, but this server fetches no images.
  const build = e2b.Template.build(e2b.Template().fromImage('debian:12'), 'mine')
  await assert.rejects(build, (error) => error instanceof e2b.BuildError && /import_registries/.test(error.message))
  assert.equal(await e2b.Template.exists('base'), true)
  assert.equal(await e2b.Template.exists('name/space:tag'), false)
  await assert.rejects(Sandbox.create({ apiKey: `e2b_${'0'.repeat(64)}` }), e2b.AuthenticationError)
})

test('volumes', patience, async () => {
  const volume = await e2b.Volume.create('node')
  const first = await Sandbox.create({ timeoutMs: 60_000, volumeMounts: { '/mnt/data': volume } })
  await first.files.write('/mnt/data/file', 'hello')
  await assert.rejects(e2b.Volume.destroy(volume.volumeId), /in use by sandbox/)
  await first.kill()
  const second = await Sandbox.create({ timeoutMs: 60_000, volumeMounts: { '/srv/data': 'node' } })
  assert.equal(await second.files.read('/srv/data/file'), 'hello')
  await second.kill()
  assert.deepEqual((await e2b.Volume.list()).map(({ volumeId, name }) => [volumeId, name]), [[volume.volumeId, 'node']])
  assert.equal((await e2b.Volume.connect(volume.volumeId)).name, 'node')
  assert.equal(await volume.readFile('/file'), 'hello')
  assert.equal((await volume.writeFile('/deep/file', 'there', { force: true })).size, 5)
  assert.deepEqual((await volume.list('/deep')).map(({ path, type }) => [path, type]), [['/deep/file', 'file']])
  assert.equal((await volume.updateMetadata('/deep/file', { mode: 0o600 })).mode & 0o777, 0o600)
  await volume.remove('/deep')
  assert.equal(await volume.exists('/deep'), false)
  await assert.rejects(volume.readFile('/deep/file'), e2b.VolumePathNotFoundError)
  assert.equal(await e2b.Volume.destroy(volume.volumeId), true)
  assert.equal(await e2b.Volume.destroy(volume.volumeId), false)
})

test('snapshots and forks have files and no processes', patience, async () => {
  await sandbox.files.write('/tmp/kept', 'there')
  const { snapshotId } = await sandbox.createSnapshot()
  assert.deepEqual((await Sandbox.listSnapshots().nextItems()).map((found) => found.snapshotId), [snapshotId])
  const copy = await Sandbox.create(snapshotId, { timeoutMs: 60_000 })
  assert.equal(await copy.files.read('/tmp/kept'), 'there')
  await copy.kill()
  const [fork] = await sandbox.fork({ timeoutMs: 60_000 })
  assert.equal(await fork.files.read('/tmp/kept'), 'there')
  await fork.kill()
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), false)
})

test('commands', patience, async () => {
  const seen = []
  const result = await sandbox.commands.run('echo $GREETING; echo two >&2; id -un', { onStdout: (text) => seen.push(text) })
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['hello\nuser\n', 'two\n', 0])
  assert.equal(seen.join(''), result.stdout)
  assert.equal((await sandbox.commands.run('id -un', { user: 'root' })).stdout, 'root\n')
  assert.equal((await sandbox.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
  await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof e2b.CommandExitError && error.exitCode === 3)
  await assert.rejects(sandbox.commands.run('sleep 50', { timeoutMs: 1000 }), e2b.TimeoutError)
  await assert.rejects(sandbox.commands.run('true', { cwd: '/not/there' }), e2b.InvalidArgumentError)
  await assert.rejects(sandbox.commands.run('true', { user: 'nobody-here' }), e2b.AuthenticationError)
})

test('background, stdin and signals', patience, async () => {
  const cat = await sandbox.commands.run('cat', { background: true, stdin: true })
  await sandbox.commands.sendStdin(cat.pid, 'heard\n')
  await sandbox.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'heard\n')
  const sleeping = await sandbox.commands.run('sleep 981', { background: true, timeoutMs: 0 })
  assert.deepEqual((await sandbox.commands.list()).map((found) => found.pid), [sleeping.pid])
  await sleeping.disconnect()
  const again = await sandbox.commands.connect(sleeping.pid)
  assert.equal(await sandbox.commands.kill(sleeping.pid), true)
  await assert.rejects(again.wait(), e2b.CommandExitError)
  await until(async () => (await sandbox.commands.kill(sleeping.pid)) === false, 'it is gone')
  await assert.rejects(sandbox.commands.connect(999_999), e2b.NotFoundError)
})

test('a terminal', patience, async () => {
  let output = ''
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => (output += new TextDecoder().decode(data)) })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size\n'))
  await until(() => output.includes('24 80'), 'the terminal answers')
  await sandbox.pty.resize(terminal.pid, { cols: 132, rows: 50 })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
  await until(() => output.includes('50 132'), 'it has its new size')
  await terminal.wait()
})

test('files', patience, async () => {
  const written = await sandbox.files.write('deep/a b ü.txt', 'hello')
  assert.equal(written.path, '/home/user/deep/a b ü.txt')
  assert.equal(await sandbox.files.read('deep/a b ü.txt'), 'hello')
  const bytes = new Uint8Array(1_000_000).map((_, index) => index % 251)
  await sandbox.files.write('deep/bytes', new Blob([bytes]))
  assert.deepEqual(await sandbox.files.read('deep/bytes', { format: 'bytes' }), bytes)
  await sandbox.files.write([
    { path: 'many/one', data: '1' },
    { path: 'many/t"wo', data: '2' },
  ])
  assert.deepEqual((await sandbox.files.list('many')).map((entry) => entry.name).sort(), ['one', 't"wo'])
  assert.equal(await sandbox.files.makeDir('many'), false)
  assert.equal(await sandbox.files.makeDir('some/more'), true)
  assert.equal((await sandbox.files.getInfo('many/one')).size, 1)
  await sandbox.files.rename('many/one', 'many/first')
  assert.equal(await sandbox.files.exists('many/one'), false)
  await sandbox.files.remove('many')
  assert.equal(await sandbox.files.exists('many'), false)
  await assert.rejects(sandbox.files.read('absent'), e2b.NotFoundError)
  const url = await sandbox.downloadUrl('deep/a b ü.txt')
  assert.equal(await (await fetch(url)).text(), 'hello')
  const brief = await sandbox.downloadUrl('deep/a b ü.txt', { useSignatureExpiration: 60 })
  assert.equal(await (await fetch(brief)).text(), 'hello')
  const upload = await sandbox.uploadUrl('posted', { useSignatureExpiration: 60 })
  const form = new FormData()
  form.append('file', new Blob(['by form']), 'posted')
  assert.equal((await fetch(upload, { method: 'POST', body: form })).status, 200)
  assert.equal(await sandbox.files.read('posted'), 'by form')
  assert.equal((await fetch(url.replace('signature=v1_', 'signature=v1_x'))).status, 401)
})

test('watching', patience, async () => {
  await sandbox.files.makeDir('watched')
  const events = []
  const handle = await sandbox.files.watchDir('watched', (event) => events.push(event), { timeoutMs: 60_000 })
  await sandbox.files.write('watched/new', '1')
  const has = (type, name) => events.some((event) => event.type === type && event.name === name)
  await until(() => has('create', 'new') && has('write', 'new'), 'it is written')
  await sandbox.files.remove('watched/new')
  await until(() => has('remove', 'new'), 'it is removed')
  await handle.stop()
  await assert.rejects(sandbox.files.watchDir('absent', () => {}), e2b.NotFoundError)
})

/** Imports an image with a shell and an account through the server's own API. */
async function importAccounts(name) {
  const place = mkdtempSync(join(tmpdir(), 'saggar-e2b-'))
  const run = (program, ...args) => execFileSync(program, args, { cwd: place, stdio: ['ignore', 'ignore', 'inherit'] })
  const insert = (from, to) => run('umoci', 'insert', '--rootless', '--image', 'oci:x', from, to)
  try {
    run('umoci', 'init', '--layout', 'oci')
    run('umoci', 'new', '--image', 'oci:x')
    insert('/bin/busybox', '/bin/sh')
    // The client's commands are run by bash.
    writeFileSync(join(place, 'bash'), '#!/bin/sh\nexec /bin/sh "$@"\n', { mode: 0o755 })
    insert('bash', '/bin/bash')
    writeFileSync(join(place, 'passwd'), 'app:x:1234:2345::/srv/app:/bin/sh\n')
    insert('passwd', '/etc/passwd')
    run('tar', '-cf', 'image.tar', '-C', 'oci', '.')
    const jobs = `${process.env.E2B_API_URL}/api/v1/template-jobs`
    const headers = { 'X-API-KEY': process.env.E2B_API_KEY, 'Content-Type': 'application/x-tar' }
    const body = readFileSync(join(place, 'image.tar'))
    let job = await (await fetch(`${jobs}/upload?name=${name}`, { method: 'POST', headers, body })).json()
    while (job.state === 'running') job = await (await fetch(`${jobs}/${job.id}`, { headers })).json()
    assert.equal(job.state, 'succeeded', JSON.stringify(job))
  } finally {
    rmSync(place, { recursive: true })
  }
}

test('programs and files are of the user that setUser names', patience, async () => {
  await importAccounts('accounts')
  await e2b.Template.build(e2b.Template().fromTemplate('accounts').setUser('app'), 'with-user')
  const sandbox = await Sandbox.create('with-user', { timeoutMs: 60_000 })
  try {
    assert.equal((await sandbox.commands.run('id -u; echo $HOME; pwd')).stdout, '1234\n/srv/app\n/srv/app\n')
    assert.equal((await sandbox.files.write('mine', 'x')).path, '/srv/app/mine')
    assert.equal((await sandbox.commands.run('stat -c %u:%g mine', { user: 'app' })).stdout, '1234:2345\n')
    assert.equal((await sandbox.commands.run('id -u', { user: 'user' })).stdout, '1000\n')
  } finally {
    await sandbox.kill()
  }
})
