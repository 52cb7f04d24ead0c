r"""The graders as `evaluate.Metric` classes, for use without the runner, online or not.

```python
from river_llm.metrics import Gsm8kAccuracy

Gsm8kAccuracy().compute(predictions=["3 + 4 = 7\n#### 7"], references=["7"])
```
"""

from river_llm.metrics.gsm8k import Gsm8kAccuracy
from river_llm.metrics.humaneval import HumanEvalPassAtK
from river_llm.metrics.math import MathAccuracy

__all__ = ["Gsm8kAccuracy", "HumanEvalPassAtK", "MathAccuracy"]
