// The search reads a leading "-" as an operator, so it would refuse options such as "--since". Here the dashes become a
// part of the word: the search unescapes a query twice.
const postMessage = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const isQuery = typeof message?.data === "string";
  const query = isQuery && message.data.replace(/(?<!\S)--?(?=\w)/g, (dashes) => dashes.replaceAll("-", "\\\\\\-"));
  return postMessage.call(this, isQuery ? { ...message, data: query } : message, ...rest);
};
