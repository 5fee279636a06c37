"""The world of one rollout: the question's prompt, the calls or code of a turn carried out, the observation.

``tool_calls``, ``grounding`` and ``code`` are the worlds, each bound from conf/env by a ``card``. ``worlds`` opens them
for a run, ``claims`` has the sandbox do a claimed operation again, ``video_frames`` shows a video as images instead.
``demonstrate``, ``imitate`` and ``produce`` play demonstrations in them. The room may import tools, sandbox, data,
signals and families' call syntax. It must not know a policy, a reward, a paper by name, or how rollouts are scheduled.
"""
